"""Plausible wrong answers of lesson 11, each with words of its hint."""

import math

import numpy as np


def _scaled_in_a_list(gradient, images, targets, part):
    starts = range(0, len(images), part)
    parts = [(images[at : at + part], targets[at : at + part]) for at in starts]
    return sum([gradient(x, y) * (len(x) / len(images)) for x, y in parts])


def _plain_mean(gradient, images, targets, part):
    starts = range(0, len(images), part)
    total = 0.0
    for at in starts:
        total = total + gradient(images[at : at + part], targets[at : at + part]) / len(starts)
    return total


def _sum_of_means(gradient, images, targets, part):
    total = 0.0
    for at in range(0, len(images), part):
        total = total + gradient(images[at : at + part], targets[at : at + part])
    return total


def _without_the_rest(gradient, images, targets, part):
    total = 0.0
    for number in range(len(images) // part):
        total = total + gradient(images[number * part :][:part], targets[number * part :][:part])
    return total / (len(images) // part) if len(images) >= part else total


def _own_gradient(worker, weights, gradient, velocity):
    mine = slice(*_bounds(worker, len(weights)))
    velocity = 0.9 * velocity + gradient[mine]
    for other in set(range(worker.size)) - {worker.rank}:
        worker.send(other, velocity)
    found = {worker.rank: velocity}
    for other in set(range(worker.size)) - {worker.rank}:
        found[other] = worker.receive(other)
    return weights - 0.1 * np.concatenate([found[rank] for rank in range(worker.size)]), velocity


def _bounds(worker, length):
    sizes = [len(part) for part in np.array_split(np.zeros(length), worker.size)]
    return sum(sizes[: worker.rank]), sum(sizes[: worker.rank + 1])


def _all_reduce(worker, weights, gradient, velocity, *, gathered=True):
    others = set(range(worker.size)) - {worker.rank}
    for other in others:
        worker.send(other, gradient)
    total = gradient + sum(worker.receive(other) for other in others)
    first, last = _bounds(worker, len(weights))
    velocity = 0.9 * velocity + total[first:last]
    new = weights.copy()
    new[first:last] -= 0.1 * velocity
    if gathered:
        for other in others:
            worker.send(other, new[first:last])
        parts = {worker.rank: new[first:last], **{other: worker.receive(other) for other in others}}
        new = np.concatenate([parts[rank] for rank in range(worker.size)])
    return new, velocity


def _not_gathered(worker, weights, gradient, velocity):
    return _all_reduce(worker, weights, gradient, velocity, gathered=False)


def _greets_first(worker, weights, gradient, velocity):
    others = set(range(worker.size)) - {worker.rank}
    for other in others:
        worker.send(other, np.zeros(0))
    for other in others:
        worker.receive(other)
    parts = np.array_split(gradient, worker.size)
    for other in others:
        worker.send(other, parts[other])
    velocity = 0.9 * velocity + parts[worker.rank] + sum(worker.receive(other) for other in others)
    new = np.array_split(weights, worker.size)
    new[worker.rank] = new[worker.rank] - 0.1 * velocity
    for other in others:
        worker.send(other, new[worker.rank])
    return np.concatenate(
        [worker.receive(n) if n in others else new[n] for n in range(worker.size)]
    ), velocity


def _whole_velocity(worker, weights, gradient, velocity):
    return weights - 0.1 * gradient, gradient


def _waits(worker, weights, gradient, velocity):
    if worker.rank == 1:
        worker.receive(0)
    return weights, velocity


WRONG = {
    "11.1": [
        (lambda images, side, width: 12 * images * side**2 * width * 4, "one input of the sum is missing"),
        (lambda images, side, width: 20 * images * side**2 * width * 4, "the output of the last ReLU"),
        (lambda images, side, width: 16 * images * side**2 * width, "has 4 bytes"),
        (lambda images, side, width: 16 * side**2 * width * 4, "for each of its images"),
        (lambda images, side, width: 7 * images * side**2 * width * 4, "four times as wide"),
        (lambda images, side, width: 15 * images * side**2 * width * 4, "layer by layer"),
    ],
    "11.2": [
        (lambda gradient, images, targets, part: gradient(images, targets), "images at once"),
        (_plain_mean, "its share of the images"),
        (_sum_of_means, "each part's gradient is a mean"),
        (_without_the_rest, "the last part may be smaller"),
        (_scaled_in_a_list, "held at one time"),
        (lambda gradient, images, targets, part: np.zeros(6), "never called"),
    ],
    "11.3": [
        (lambda blocks, kept, budget: round(math.sqrt(blocks / kept)), "longer ones do as well"),
        (lambda blocks, kept, budget: budget // kept, "the number of which is rounded up"),
        (lambda blocks, kept, budget: blocks + 1, "not a number of blocks"),
        (lambda blocks, kept, budget: 0, "longer ones may fit where short ones don't"),
        (
            lambda blocks, kept, budget: max(
                [s for s in range(1, blocks + 1) if -(-blocks // s) + kept * s <= budget], default=1
            ),
            "return 0",
        ),
    ],
    "11.4": [
        (_own_gradient, "its own gradient only"),
        (_all_reduce, "allowed"),
        (_not_gathered, "have different weights"),
        (_greets_first, "why is it sent"),
        (_whole_velocity, "it holds its part only"),
        (_waits, "worker 1 still waits for a message from worker 0"),
        (lambda worker, weights, gradient, velocity: (weights, velocity), "aren't those of one process"),
    ],
}
