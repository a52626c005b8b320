"""A small real training whose steps, checkpoints and restarts last as long as is stated.

The network is a softmax regression in float64, whose gradient takes a fraction of a millisecond. Each step
waits until it has lasted as long as is stated, and so do checkpoints and restarts. So hours fit into seconds,
many trainings fit on two cores, and what failures cost can be compared with formulas.
"""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.begin import SIDE, small_features
from course.lessons.failure.processes import Event, Log

if TYPE_CHECKING:
    from labkit.data.manifest import Manifest

LOG, SAVED = "log.jsonl", "saved.npz"
COUNT, LOST, CHECKPOINT, RESTART = "steps that count", "steps that are lost", "checkpoint", "restart"
KINDS = {"step": COUNT, "lost": LOST, "saved": CHECKPOINT, "start": RESTART}
BATCH = 128  # images of a step
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Softmax:
    """A softmax regression on ``images`` float64 [n, features] with ``labels`` int64 [n]."""

    images: NDArray[np.float64]
    labels: NDArray[np.int64]

    def start(self) -> Weights:
        """Return the initial weights, float64 [features, classes]: zeros."""
        return np.zeros((self.images.shape[1], int(self.labels.max()) + 1))

    def rows(self, step: int, seed: int) -> NDArray[np.int64]:
        """Return the images of the batch of a step, which follow from seed and step alone."""
        return np.random.default_rng([seed, step]).integers(0, len(self.labels), BATCH)

    def gradient(self, weights: Weights, rows: NDArray[np.int64]) -> tuple[Weights, float]:
        """Return the gradient of the loss of ``rows``, and the loss in nats, both summed over the rows."""
        images = self.images[rows]
        logits = images @ weights
        errors = np.exp(logits - logits.max(1, keepdims=True))
        errors /= errors.sum(1, keepdims=True)
        own = np.arange(len(rows)), self.labels[rows]
        loss = -np.log(errors[own]).sum()
        errors[own] -= 1
        return images.T @ errors, float(loss)

    def train(self, batches: Sequence[NDArray[np.int64]], rate: float) -> list[float]:
        """Make a step for each batch in this process. Returns the loss of each, in nats."""
        weights, losses = self.start(), []
        for rows in batches:
            gradient, loss = self.gradient(weights, rows)
            weights = weights - rate / len(rows) * gradient
            losses.append(loss / len(rows))
        return losses

    def accuracy(self, weights: Weights) -> NDArray[np.float64]:
        """Return the share of right predictions of each class, float64 [classes]."""
        right = (self.images @ weights).argmax(1) == self.labels
        return np.array([right[self.labels == label].mean() for label in range(weights.shape[1])])


def softmax_of(manifest: "Manifest") -> Softmax:
    """Return a regression on 2,000 training images: how far each of 8×8 blocks is from the image's mean."""
    images, labels = small_features(manifest)
    blocks = images[:2000].reshape(-1, SIDE * SIDE, images.shape[1] // SIDE**2).astype(np.float64)
    contrast = np.abs(blocks - blocks.mean(1, keepdims=True)).mean(2)
    return Softmax((contrast - contrast.mean(0)) / contrast.std(0), labels[:2000].astype(np.int64))


@dataclass(frozen=True)
class Job:
    """A training of ``steps`` steps, the least seconds of its parts, and the ``seed`` of its batches.

    A ``restart`` lasts until a process has loaded its checkpoint.
    """

    model: Softmax
    seed: int
    steps: int = 80
    step: float = 0.030
    checkpoint: float = 0.050
    restart: float = 0.100
    rate: float = 0.05


def train(job: Job, interval: int, folder: Path) -> None:
    """Train, saving after every ``interval`` steps and the last one. Goes on from the last checkpoint.

    Writes ``LOG`` and ``SAVED`` into ``folder``. May be killed at any moment and called again.
    """
    log, path, began = Log(folder / LOG), folder / SAVED, time.monotonic()
    step, weights = 0, job.model.start()
    if path.exists():
        with np.load(path) as saved:
            step, weights = int(saved["step"]), saved["weights"]
    _wait_until(began + job.restart)
    log("start", step)
    while step < job.steps:
        began = time.monotonic()
        gradient, _ = job.model.gradient(weights, job.model.rows(step, job.seed))
        weights, step = weights - job.rate / BATCH * gradient, step + 1
        _wait_until(began + job.step)
        log("step", step)
        if step % interval == 0 or step == job.steps:
            _save(path, time.monotonic() + job.checkpoint, step=step, weights=weights)
            log("saved", step)


def _save(path: Path, until: float, **arrays: Any) -> None:
    """Write whole or not at all: under another name first, and onto the disk; ``until`` then, as the file."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    _wait_until(until)
    unfinished.replace(path)


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def periods(log: Sequence[Event]) -> list[tuple[str, float, float]]:
    """Return what a training did from when to when: (``COUNT``, ``LOST``, …, begin, end), in seconds.

    A step counts if a checkpoint after it was saved before the process was lost.
    """
    found: list[tuple[str, float, float]] = []
    unsaved = 0  # position of the first period that a kill would lose
    for last, event in pairwise(log):
        if event.what == "lost":
            found[unsaved:] = [(LOST, *period[1:]) for period in found[unsaved:]]
        kind = RESTART if last.what == "lost" else KINDS[event.what]
        found.append((kind, last.seconds, event.seconds))
        unsaved = unsaved if event.what == "step" else len(found)
    return found


def bars(logs: Iterable[Sequence[Event]]) -> list[tuple[int, str, float, float]]:
    """Return what trainings did when: the number of the log, what, begin and end since the first start."""
    return [
        (row, kind, begin - log[0].seconds, end - log[0].seconds)
        for row, log in enumerate(logs)
        for kind, begin, end in periods(log)
    ]


def seconds_of(log: Sequence[Event], kind: str) -> NDArray[np.float64]:
    """Return how long each period of a kind lasted."""
    return np.array([end - begin for name, begin, end in periods(log) if name == kind])


def goodput(logs: Iterable[Sequence[Event]]) -> float:
    """Return the share of the time of several trainings in which steps were made that count."""
    logs = list(logs)
    count = sum(seconds_of(log, COUNT).sum() for log in logs)
    return float(count / sum(log[-1].seconds - log[0].seconds for log in logs))


def median_costs(logs: Sequence[Sequence[Event]]) -> tuple[float, float, float]:
    """Return the median seconds of a step, a checkpoint and a restart."""
    step, checkpoint, restart = (
        float(np.median(np.concatenate([seconds_of(log, kind) for log in logs])))
        for kind in (COUNT, CHECKPOINT, RESTART)
    )
    return step, checkpoint, restart


# ---- what failures cost, by formula ---------------------------------------------------------------------


def expected_goodput(work: float, checkpoint: float, restart: float, mtbf: float) -> float:
    """Return the expected share of time in which steps are made that count.

    Exact if failures come at random moments with the same mean at all times: equation 13 of Daly (2006),
    https://doi.org/10.1016/j.future.2004.11.016.

    Args:
        work: seconds of steps between two checkpoints.
        checkpoint: seconds that one takes.
        restart: seconds from a failure to the next step.
        mtbf: mean seconds between two failures.
    """
    exponent = (work + checkpoint) / mtbf
    if exponent + restart / mtbf > 700:  # the limit of a float; nothing is ever done
        return 0.0
    return work / (mtbf * math.exp(restart / mtbf) * math.expm1(exponent))


def best_work(checkpoint: float, mtbf: float) -> float:
    """Return the seconds of work between two checkpoints that lose least, by Daly's equation 37."""
    if checkpoint >= 2 * mtbf:
        return mtbf
    share = checkpoint / (2 * mtbf)
    return math.sqrt(2 * checkpoint * mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint
