"""Workers that compute gradients for a server, at a stated pace. The server is worker 0."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.failure.processes import Inbox, arrivals
from course.lessons.failure.training import Softmax
from course.lessons.workers import Worker, Workers

Answer = tuple[Any, ...]
SECONDS = 1e-3  # of an image


def evenly(rows: NDArray[np.int64], members: Sequence[int]) -> dict[int, NDArray[np.int64]]:
    """Divide rows among workers. Returns those of each rank."""
    return dict(zip(members, np.array_split(rows, len(members)), strict=True))


def train_with(
    workers: Workers,
    model: Softmax,
    server: Callable[..., Any],
    batches: Sequence[NDArray[np.int64]],
    *arguments: Any,
    slow: float = 1,
    dies: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Any, float]:
    """Run a server in worker 0 and ``compute`` in the others. Returns its result, and milliseconds a batch.

    Args:
        server: is called with the worker, ``model``, ``batches`` and ``arguments``.
        slow: how many times as long the last worker takes.
        dies: see ``compute``.
    """
    pace = [SECONDS] * (workers.size - 1) + [slow * SECONDS]

    def work(worker: Worker) -> Any:
        if worker.rank:
            return compute(worker, model, pace, dict(dies))
        return server(worker, model, batches, *arguments)

    run = workers.run(work, seconds=60, may_lose=bool(dies))
    return run.results[0], 1000 * run.seconds[0] / len(batches)


def compute(worker: Worker, model: Softmax, pace: Sequence[float], dies: Mapping[int, int]) -> None:
    """Answer tasks (number, weights, rows) with (number, gradient, loss) until the server ends.

    A task that came while an older one was computed takes its place.

    Args:
        model: whose gradient is computed, summed over the rows.
        pace: seconds for a row, of each worker.
        dies: the number of the task at which a worker is killed, by its rank.
    """
    inbox, task = arrivals(worker, [0]), None
    while True:
        _, task = inbox.get()
        while task is not None and not inbox.empty():
            _, task = inbox.get()
        if task is None:
            return worker.send(0, None)
        number, weights, rows = task
        time.sleep(pace[worker.rank] * len(rows))
        if number >= dies.get(worker.rank, np.inf):
            os.kill(os.getpid(), signal.SIGKILL)
        worker.send(0, (number, *model.gradient(weights, rows)))


def gather(inbox: Inbox, members: list[int], number: int, needed: int) -> dict[int, Answer] | None:
    """Return the first ``needed`` answers to a task, (gradient, loss) by rank; answers to others are dropped.

    Returns None if a worker is lost meanwhile. It is no longer in ``members`` then.
    """
    answers: dict[int, Answer] = {}
    while len(answers) < min(needed, len(members)):
        rank, answer = inbox.get()
        if answer is None:
            members.remove(rank)
            return None
        if answer[0] == number:
            answers[rank] = answer[1:]
    return answers


def end(worker: Worker, inbox: Inbox, members: list[int]) -> None:
    """End the workers, and read what they still send."""
    for rank in members:
        worker.send(rank, None)
    while members:
        rank, answer = inbox.get()
        if answer is None:
            members.remove(rank)


def serve_at_once(
    worker: Worker, model: Softmax, batches: Sequence[NDArray[np.int64]], rate: float
) -> list[tuple[int, int]]:
    """Make an update for each batch, asynchronously. Returns the rank and the staleness of each."""
    members = list(range(1, worker.size))
    inbox, weights, made = arrivals(worker, members), model.start(), list[tuple[int, int]]()
    for rank in members:
        worker.send(rank, (0, weights, batches[rank]))
    while len(made) < len(batches):
        rank, answer = inbox.get()
        if answer is None:  # lost, and nobody else need know
            members.remove(rank)
            continue
        version, gradient, _ = answer
        weights = weights - rate / len(batches[0]) * gradient
        made.append((rank, len(made) - version))
        worker.send(rank, (len(made), weights, batches[len(made) % len(batches)]))
    end(worker, inbox, members)
    return made
