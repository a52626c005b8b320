"""Plausible wrong answers of lesson 10, each with words of its hint."""

import numpy as np

from course.lessons.collectives.exchange import halving_doubling


def _ring_scatter(worker, array):
    chunks, size = np.split(array, worker.size), worker.size
    for step in range(size - 1):
        worker.send((worker.rank + 1) % size, chunks[(worker.rank - 1 - step) % size])
        chunk = (worker.rank - 2 - step) % size
        chunks[chunk] = chunks[chunk] + worker.receive((worker.rank - 1) % size)
    return chunks[worker.rank]


def _halving(worker, array, lower_first=True, give_all=False):
    low, high, distance = 0, len(array), worker.size // 2
    array = array.copy()
    while distance:
        partner, middle = worker.rank ^ distance, (low + high) // 2
        keep = (low, middle) if (worker.rank < partner) == lower_first else (middle, high)
        give = (middle, high) if keep[0] == low else (low, middle)
        worker.send(partner, array if give_all else array[slice(*give)])
        received = worker.receive(partner)
        array[slice(*keep)] += received[slice(*keep)] if give_all else received
        (low, high), distance = keep, distance // 2
    return array[low:high]


def _nearest_first(worker, array):
    for distance in (2**n for n in range(worker.size.bit_length() - 1)):
        halves, upper = np.split(array, 2), bool(worker.rank & distance)
        worker.send(worker.rank ^ distance, halves[not upper])
        array = halves[upper] + worker.receive(worker.rank ^ distance)
    return array


def _never_sent(worker, array):
    return np.split(array, worker.size)[worker.rank]


def _waits(worker, array):
    return worker.receive(worker.rank ^ 1)


def _recursive_doubling(worker, array):
    distance = 1
    while distance < worker.size:
        worker.send(worker.rank ^ distance, array)
        array = array + worker.receive(worker.rank ^ distance)
        distance *= 2
    return array


def _all_to_all(worker, array):
    others = [rank for rank in range(worker.size) if rank != worker.rank]
    for rank in others:
        worker.send(rank, array)
    return array + sum(worker.receive(rank) for rank in others)


def _spends_more(worker, array):
    total = halving_doubling(worker, array)
    for distance in (1, 2)[: worker.size // 2]:
        worker.send(worker.rank ^ distance, array[:0])
        worker.receive(worker.rank ^ distance)
    return total


def _model(crossing):
    def answer(sizes, seconds, workers):
        beta, alpha = np.polyfit(sizes, seconds, 1)
        return alpha, beta, crossing(alpha / beta, workers, np.log2(workers))

    return answer


def _top(choose, kept):
    def answer(gradient, memory, count):
        total = gradient + memory
        index = np.argsort(choose(gradient, total))[-count:]
        return index, total[index], kept(total, index)

    return answer


def _rest(total, index):
    rest = total.copy()
    rest[index] = 0
    return rest


WRONG = {
    "10.1": [
        (_ring_scatter, "messages, allowed: 2"),
        (lambda worker, array: _halving(worker, array, lower_first=False), "who keeps the lower half"),
        (lambda worker, array: _halving(worker, array, give_all=True), "times its array"),
        (_nearest_first, "Halve with the farthest partner first"),
        (_never_sent, "add what the partner sends"),
        (_recursive_doubling, "return only its chunk"),
        (_waits, "worker 1 still waits for a message from worker 0"),
        (lambda worker, array: array[:: worker.size], "isn't the sum of chunk 0"),
    ],
    "10.2": [
        (_halving, "has the shape [12]; expected [24]"),
        (_recursive_doubling, "times its array"),
        (_spends_more, "messages, allowed: 2"),
        (lambda worker, array: halving_doubling(worker, array) / worker.size, "is the mean"),
        (lambda worker, array: array * worker.size, "the last one first"),
        (_waits, "worker 0 still waits"),
    ],
    "10.3": [
        (_model(lambda ratio, workers, rounds: ratio), "how many messages and bytes"),
        (
            lambda sizes, seconds, workers: (*np.polyfit(sizes, seconds, 1), 1.0),
            "np.polyfit gives the slope",
        ),
        (
            _model(lambda r, n, rounds: r * (2 * (n - 1) - 2 * rounds) / (rounds - 2 * (n - 1) / n)),
            "as many to broadcast",
        ),
        (
            _model(lambda r, n, rounds: r * (2 * (n - 1) - 2 * rounds) / (2 * rounds - 2 * (n - 1))),
            "has 1 / N of the array",
        ),
        (_model(lambda ratio, workers, rounds: 2 * ratio * workers), "don't take the same time"),
        (lambda sizes, seconds, workers: (seconds[0], 1e-8, 1.0), "the table was made with"),
    ],
    "10.4": [
        (_top(lambda g, total: np.abs(total), lambda total, index: 0 * total), "is lost"),
        (_top(lambda g, total: np.abs(total), lambda total, index: total), "sent twice"),
        (_top(lambda g, total: np.abs(g), _rest), "never gets its turn"),
        (_top(lambda g, total: total, _rest), "choose by the absolute value"),
        (_top(lambda g, total: np.abs(total), lambda total, index: _rest(total, index) / 2), "keep all that"),
    ],
}
