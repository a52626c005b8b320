"""A solution of project 2: α and β of the link from messages there and back, then the α–β model."""

import time

import numpy as np

# Messages that follow each other, and how many whole arrays they carry, for N workers.
COUNTS = {
    "tree": lambda n: (2 * np.log2(n), 2 * np.log2(n)),
    "ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "halving-doubling": lambda n: (2 * np.log2(n), 2 * (n - 1) / n),
}


def message_seconds(worker, size):
    other, tries = 1 - worker.rank, []
    for _ in range(8):
        begin = time.perf_counter()
        if worker.rank == 0:
            worker.send(other, np.zeros(size, np.uint8))
            worker.receive(other)
        else:
            worker.send(other, worker.receive(other))
        tries.append((time.perf_counter() - begin) / 2)
    return min(tries)


def predict(worker, cases):
    alpha, first, second = (message_seconds(worker, size) for size in (1000, 200_000, 600_000))
    beta = (second - first) / 400_000
    found = []
    for algorithm, workers, num_bytes in cases:
        messages, arrays = COUNTS[algorithm](workers)
        found.append(messages * alpha + arrays * num_bytes * beta)
    return found
