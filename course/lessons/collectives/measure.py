"""What lesson 10 measures: messages, all-reduces and steps of a training."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.collectives.exchange import Through
from course.lessons.workers import Round, Worker, Workers

MOST_SPANS = 40  # of a step that is drawn
REPEATS = 3  # of each measurement; other work on the machine only makes it slower, so the fastest counts
Floats = NDArray[np.float32]


def message_times(
    workers: Workers, bytes_a_second: float, *, delay: float = 0.0
) -> tuple[list[int], list[float]]:
    """Return sizes in bytes, and the seconds of a message of each between workers 0 and 1.

    Args:
        workers: at least two.
        bytes_a_second: of the link; the last three sizes take 20, 40 and 60 ms at this rate.
        delay: seconds that each message costs its sender.
    """
    sizes = [100, 1000, *(int(bytes_a_second * part) for part in (0.001, 0.003, 0.02, 0.04, 0.06))]
    return sizes, workers.run(_there_and_back, sizes, delay).results[0]


def _there_and_back(worker: Worker, sizes: Iterable[int], delay: float) -> list[float]:
    link, other = Through(worker, delay=delay), 1 - worker.rank

    def half(size: int) -> float:
        worker.send(other, None)  # both are ready
        worker.receive(other)
        time.sleep(0.015)  # until the link has its whole burst again
        begin = time.perf_counter()
        if worker.rank == 0:
            link.send(other, np.zeros(size, np.uint8))
            link.receive(other)
        else:
            link.send(other, link.receive(other))
        return (time.perf_counter() - begin) / 2

    if worker.rank > 1:
        return []
    return [min(half(size) for _ in range(REPEATS)) for size in sizes]


def in_turns(
    workers: Workers, function: Callable[..., Any], cases: Mapping[str, tuple[Any, ...]]
) -> dict[str, list[Round]]:
    """Run a function with the arguments of each case, several times. Returns the rounds of each case.

    They take turns, so that a busy minute slows down all of them.
    """
    tries = [[workers.run(function, *arguments) for arguments in cases.values()] for _ in range(REPEATS)]
    return {name: list(found) for name, found in zip(cases, zip(*tries, strict=True), strict=True)}


def fastest(rounds: Sequence[Round]) -> Round:
    """Return the round whose slowest worker was the fastest."""
    return min(rounds, key=lambda done: max(done.seconds))


def all_reduces(
    workers: Workers, algorithms: Mapping[str, Callable[..., Any]], num_bytes: int, *, delay: float
) -> dict[str, Round]:
    """Return the fastest round of each algorithm, a function of a worker and an array of so many bytes."""

    def run(worker: Worker, algorithm: Callable[..., Any]) -> None:
        algorithm(Through(worker, delay=delay), np.ones(num_bytes // 8))

    rounds = in_turns(workers, run, {name: (algorithm,) for name, algorithm in algorithms.items()})
    return {name: fastest(found) for name, found in rounds.items()}


def seconds_of(
    workers: Workers, algorithms: Mapping[str, Callable[..., Any]], sizes: Sequence[int], *, delay: float
) -> dict[str, list[float]]:
    """Return the seconds until all workers have the result, by algorithm, for arrays of so many bytes."""
    found = [all_reduces(workers, algorithms, size, delay=delay) for size in sizes]
    return {name: [max(rounds[name].seconds) for rounds in found] for name in algorithms}


@functools.cache  # a worker computes them once
def dense_layers(layers: int, width: int, batch: int, seed: int) -> tuple[list[Floats], list[Floats]]:
    """Return the activations of dense layers with rectifiers, the input first, and the layers' kernels."""
    random = np.random.default_rng(seed)
    kernels = [random.normal(0, width**-0.5, (width, width)).astype(np.float32) for _ in range(layers)]
    activations = [random.normal(size=(batch, width)).astype(np.float32)]
    for kernel in kernels:
        activations.append(np.maximum(activations[-1] @ kernel, 0))
    return activations, kernels


def steps(
    workers: Workers, step: Callable[..., Any], cases: Mapping[str, tuple[Any, ...]]
) -> dict[str, dict[str, Any]]:
    """Run a training step with the arguments of each case, which take turns.

    Returns, by case, the seconds of the fastest step and of the fastest span ``backward``, the step's spans
    ``backward`` and ``exchange`` unless they are many, and a sum for each array that a step returned.
    """
    return {name: _step(rounds) for name, rounds in in_turns(workers, step, cases).items()}


def _step(rounds: Sequence[Round]) -> dict[str, Any]:
    best = fastest(rounds)
    shown = [span for span in best.spans if span.name in ("backward", "exchange")]
    backward = [[s.end - s.begin for s in done.spans if s.name == "backward"] for done in rounds]
    return {
        "step": max(best.seconds),
        "backward": min(map(max, backward)),
        "spans": shown if len(shown) < MOST_SPANS else [],
        "sums": [float(np.abs(result).sum(dtype=np.float64)) for done in rounds for result in done.results],
    }


def loss_and_gradient(
    weights: NDArray[Any],
    images: NDArray[Any],
    labels: NDArray[np.int32],
    *,
    hidden: int = 64,
    classes: int = 10,
) -> tuple[float, NDArray[Any]]:
    """Return the mean loss of a dense network with one hidden layer, in nats, and its gradient [weights].

    Args:
        weights: kernels of both layers, float [features · hidden + hidden · classes].
        images: float [n, features].
        labels: int32 [n].
    """
    split = images.shape[1] * hidden
    first, second = weights[:split].reshape(-1, hidden), weights[split:].reshape(hidden, classes)
    between = np.maximum(images @ first, 0)
    scores = between @ second
    scores = np.exp(scores - scores.max(1, keepdims=True))
    probabilities, rows = scores / scores.sum(1, keepdims=True), np.arange(len(images))
    loss = -np.log(np.maximum(probabilities[rows, labels], 1e-30)).mean()
    probabilities[rows, labels] -= 1
    back = (probabilities @ second.T) * (between > 0)
    gradients = (images.T @ back, between.T @ probabilities)
    return float(loss), np.concatenate([part.ravel() for part in gradients]) / len(images)
