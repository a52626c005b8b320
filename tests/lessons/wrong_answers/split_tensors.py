"""Plausible wrong answers of lesson 13, each with words of its hint."""

import numpy as np


def _backward(x, gradient, first, second):
    active = np.maximum(x @ first, 0)
    of_hidden = gradient @ second.T * (active > 0)
    return active @ second, of_hidden @ first.T, x.T @ of_hidden, active.T @ gradient


def _linear(all_reduce, x, gradient, first, second):
    return all_reduce(x @ first @ second), x, first, second


def _no_message(all_reduce, x, gradient, first, second):
    return _backward(x, gradient, first, second)


def _kernels_summed(all_reduce, x, gradient, first, second):
    return tuple(all_reduce(part) for part in _backward(x, gradient, first, second))


def _too_many(all_reduce, x, gradient, first, second):
    output, of_x, of_first, of_second = _backward(x, gradient, first, second)
    all_reduce(x @ first)
    return all_reduce(output), all_reduce(of_x), of_first, of_second


def _rows(worker, band, above, below, *, up=-1, zeros=True, all_of_it=False):
    images, height, width, channels = band.shape
    neighbours = {"above": worker.rank + up, "below": worker.rank - up}
    if not zeros:
        neighbours = {side: rank % worker.size for side, rank in neighbours.items()}
    there = {side: 0 <= rank < worker.size and rank != worker.rank for side, rank in neighbours.items()}
    parts = {
        "above": np.zeros((images, above, width, channels)),
        "below": np.zeros((images, below, width, channels)),
    }
    if there["above"]:
        worker.send(neighbours["above"], band[:, :below])
    if there["below"]:
        worker.send(neighbours["below"], band if all_of_it else band[:, height - above :])
    if there["above"]:
        parts["above"] = worker.receive(neighbours["above"])[:, -above:][:, :above]
    if there["below"]:
        parts["below"] = worker.receive(neighbours["below"])
    return np.concatenate([parts["above"], band, parts["below"]], 1)


def _waits(worker, band, above, below):
    if worker.rank:
        worker.receive(worker.rank - 1)
    return band


def _bytes(split, images, size, channels, workers, *, ring=None, rows=None, number=4):
    ring = 2 * (workers - 1) / workers if ring is None else ring
    if split == "channels":
        return number * ring * 2 * images * size**2 * channels
    sent = number * ring * 18 * channels**2
    if split == "height":
        sent += number * 4 * (min(workers - 1, 2) if rows is None else rows) * images * size * channels
    return sent


def _roof(images, size, inputs, outputs, kernel, gflops, gigabytes, *, two=2, four=4, weights=1, best=min):
    positions, numbers = images * size**2, kernel**2 * inputs * outputs
    intensity = two * positions * numbers / (positions * (inputs + outputs) + weights * numbers) / four
    return intensity, best(gflops, intensity * gigabytes)


WRONG = {
    "13.1": [
        (_no_message, "needs an all-reduce"),
        (_linear, "has no ReLU"),
        (_kernels_summed, "needs no message"),
        (_too_many, "two all-reduces suffice"),
        (lambda all_reduce, x, gradient, first, second: x, "return four arrays"),
    ],
    "13.2": [
        (_waits, "worker 1 still waits for a message from worker 0"),
        (lambda worker, band, above, below: band, "expected [2, 6, 5, 3]"),
        (
            lambda worker, band, above, below: np.pad(band, [(0, 0), (above, below), (0, 0), (0, 0)]),
            "send your last rows to the",
        ),
        (lambda worker, *rows: _rows(worker, *rows, zeros=False), "needs zeros outside the image"),
        (lambda worker, *rows: _rows(worker, *rows, all_of_it=True), "is the whole array"),
    ],
    "13.3": [
        (lambda *shape: _bytes(*shape, number=1), "4 times too small"),
        (lambda *shape: _bytes(*shape) / 2, "2 times too small"),
        (lambda *shape: _bytes(*shape, ring=1.0), "not all of it"),
        (lambda *shape: _bytes(*shape, rows=0), "rows for the neighbours are missing"),
        (
            lambda *shape: (_bytes(*shape) + _bytes(*shape, rows=0)) / 2,
            "both convolutions, forward and backward",
        ),
        (lambda *shape: _bytes(*shape, rows=2), "to one neighbour on 2 workers"),
        (lambda split, *shape: _bytes("images", *shape), "once forward and once backward"),
    ],
    "13.4": [
        (lambda *layer: _roof(*layer, two=1), "are 2 FLOP"),
        (lambda *layer: _roof(*layer, four=1), "has 4 bytes"),
        (lambda *layer: _roof(*layer, weights=0), "the kernel are missing"),
        (lambda *layer: _roof(*layer, best=max), "the lower of two limits binds"),
    ],
}
