"""What lesson 10 measures: messages, steps of a training, and what is recorded where there are no links."""

import functools
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.begin import say
from course.lessons.collectives.exchange import Through
from course.lessons.workers import Round, Span, Worker, Workers
from labkit.cluster.hosts import why_no_hosts
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import read_json

# A copy of a measured.json, which each run of the lesson writes to its folder.
RECORDED = Path(__file__).with_name("recorded.json")
MOST_SPANS = 40  # of a step that is drawn
REPEATS = 4  # of each measurement; other work on the machine only makes it slower, so the fastest counts
Floats = NDArray[np.float32]


class Record:
    """Measurements that need links of a chosen rate: made here, or recorded where there can be none.

    Args:
        folder: of the lesson, where ``measured.json`` is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._values: dict[str, Any] = {}
        self._reason = why_no_hosts()
        if self._reason is not None:
            say(f"{self._reason}. What needs such links is shown as it was recorded elsewhere.")

    @property
    def has_links(self) -> bool:
        """Whether this machine can make links of a chosen rate."""
        return self._reason is None

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what ``measure`` returns, with lists for arrays and tuples; or what was recorded."""
        if not self.has_links:
            self.mark()
            return read_json(RECORDED)["values"][name]
        self._values[name] = json.loads(json.dumps(measure(), default=lambda value: value.tolist()))
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "processor": _processor(),
            "command": "labkit notebook run notebooks/10_collectives.ipynb",
        }
        write_json_atomic(self._folder / "measured.json", {**about, "values": self._values})
        return self._values[name]

    def mark(self) -> None:
        """Say of what follows that it was recorded, where this machine can't make links."""
        if not self.has_links:
            recorded = read_json(RECORDED)
            say(f"*Recorded on {recorded['date']}, {recorded['processor']}; not measured here.*")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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


def fastest(
    workers: Workers, algorithms: Mapping[str, Callable[..., Any]], num_bytes: int, *, delay: float
) -> dict[str, Round]:
    """Return the fastest round of each algorithm, a function of a worker and an array of so many bytes.

    They take turns, so that a busy minute slows down all of them.
    """

    def run(worker: Worker, algorithm: Callable[..., Any]) -> None:
        algorithm(Through(worker, delay=delay), np.ones(num_bytes // 8))

    tries = [[workers.run(run, algorithm) for algorithm in algorithms.values()] for _ in range(REPEATS)]
    rounds = zip(*tries, strict=True)
    return {
        name: min(found, key=lambda done: max(done.seconds))
        for name, found in zip(algorithms, rounds, strict=True)
    }


def seconds_of(
    workers: Workers, algorithms: Mapping[str, Callable[..., Any]], sizes: Sequence[int], *, delay: float
) -> dict[str, list[float]]:
    """Return the seconds until all workers have the result, by algorithm, for arrays of so many bytes."""
    found = [fastest(workers, algorithms, size, delay=delay) for size in sizes]
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

    Returns, by case, the seconds of the fastest step and of the fastest backward pass, that step's spans, and
    a sum for each result. The step returns an array and notes the span ``step``, where times begin.
    """
    tries = [[workers.run(step, *arguments) for arguments in cases.values()] for _ in range(REPEATS)]
    return {name: _fastest(rounds) for name, rounds in zip(cases, zip(*tries, strict=True), strict=True)}


def _fastest(rounds: Sequence[Round]) -> dict[str, Any]:
    found = [_since_step(done.spans) for done in rounds]
    spans = min(found, key=lambda spans: _longest(spans, "step"))
    shown = [span for span in spans if span.name in ("backward", "exchange")]
    return {
        "step": _longest(spans, "step"),
        "backward": min(_longest(spans, "backward") for spans in found),
        "spans": shown if len(shown) < MOST_SPANS else [],
        "sums": [float(np.abs(result).sum(dtype=np.float64)) for done in rounds for result in done.results],
    }


def _longest(spans: Iterable[Span], name: str) -> float:
    return max(span.end - span.begin for span in spans if span.name == name)


def _since_step(spans: Sequence[Span]) -> list[Span]:
    start = {span.worker: span.begin for span in spans if span.name == "step"}
    return [s._replace(begin=s.begin - start[s.worker], end=s.end - start[s.worker]) for s in spans]


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
