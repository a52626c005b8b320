"""The dense network of lesson 11: what its sharded training begins with, and how workers exchange arrays."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.memory import begin_peak
from course.lessons.workers import Worker

WIDTH, LAYERS, IMAGES = 512, 10, 128
WEIGHTS = LAYERS * WIDTH**2
Floats = NDArray[np.float32]


def reduce_scatter(worker: Worker, array: Floats) -> Floats:
    """Return this worker's part of the sum of all workers' arrays; parts are those of ``np.array_split``."""
    parts = np.array_split(array, worker.size)
    for other in range(worker.size):
        if other != worker.rank:
            worker.send(other, parts[other])
    for rank in range(worker.size):  # in one order everywhere, so that rounding is the same
        if rank != worker.rank:
            parts[rank] = worker.receive(rank)
    return np.sum(parts, axis=0)


def all_gather(worker: Worker, part: Floats) -> Floats:
    """Return the parts of all workers as one array."""
    for other in range(worker.size):
        if other != worker.rank:
            worker.send(other, part)
    parts = [part if rank == worker.rank else worker.receive(rank) for rank in range(worker.size)]
    return np.concatenate(parts)


def own(worker: Worker, array: Floats) -> Floats:
    """Return the part of an array that a worker owns, as a view."""
    return np.array_split(array, worker.size)[worker.rank]


def initial(layer: int, seed: int) -> Floats:
    """Return the first weights of a layer, [width, width]."""
    return np.random.default_rng([seed, layer]).normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32)


def beginning(worker: Worker, stage: int, seed: int) -> tuple[list[Floats], list[Floats], Floats, Floats]:
    """Return the weights and Adam's state [2, …] of each layer, and this worker's features and targets."""
    layers = (initial(layer, seed) for layer in range(LAYERS))
    weights = [own(worker, layer).copy() if stage == 3 else layer for layer in layers]
    states = [np.zeros((2, *(own(worker, w) if stage in (1, 2) else w).shape), np.float32) for w in weights]
    x = np.random.default_rng(seed).normal(size=(IMAGES, WIDTH)).astype(np.float32)
    return weights, states, own(worker, x), own(worker, np.sin(x))


def adam(weights: Floats, state: Floats, gradient: Floats, step: int) -> None:
    """Update weights and state in place (Kingma and Ba, 2015, with its constants)."""
    state[0] += 0.1 * (gradient - state[0])
    state[1] += 0.001 * (gradient**2 - state[1])
    weights -= 0.001 * (state[0] / (1 - 0.9**step)) / (np.sqrt(state[1] / (1 - 0.999**step)) + 1e-8)


def begin_measuring(worker: Worker) -> int:
    """Return the memory of this worker, in bytes, once it has what random numbers and products need."""
    begin_peak()
    all_gather(worker, reduce_scatter(worker, initial(0, 0) @ initial(1, 0)))
    return begin_peak()


def share_work(
    worker: Worker, function: Callable[[Floats], Floats], matrices: list[Floats], shared: bool
) -> tuple[float, list[float]]:
    """Apply a function to all matrices, or to those that this worker owns, and exchange the results.

    Returns the seconds that the processor computed for it, and the sum of each result.
    """
    owners = [number % worker.size for number in range(len(matrices))]
    results: dict[int, Any] = {}
    begin = time.thread_time()
    for number, owner in enumerate(owners):
        if owner == worker.rank or not shared:
            with worker.span(f"layer:{number}"):
                results[number] = function(matrices[number])
    seconds = time.thread_time() - begin
    for number, owner in enumerate(owners if shared else ()):
        for other in set(range(worker.size)) - {owner} if owner == worker.rank else ():
            worker.send(other, results[number])
        if owner != worker.rank:
            results[number] = worker.receive(owner)
    return seconds, [float(results[number].sum()) for number in range(len(matrices))]
