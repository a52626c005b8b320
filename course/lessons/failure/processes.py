"""Processes that are killed while they work, and messages in the order in which they arrive.

The processes are forks of a worker of ``course.lessons.workers``. So each has its modules and data at once,
and all of them end with the worker.
"""

import json
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from course.lessons.workers import Gone, Worker, workers_of

FORK = multiprocessing.get_context("fork")
Inbox = queue.SimpleQueue[tuple[int, Any]]


class Event(NamedTuple):
    """What happened in a training.

    ``seconds``: of a clock that all processes share. ``what``: ``start`` (a process goes on after ``step``),
    ``step`` (it was made), ``saved`` (a checkpoint after it is whole) or ``lost`` (a process was killed).
    """

    seconds: float
    what: str
    step: int = 0


class Log:
    """Appends events to a file at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def __call__(self, what: str, step: int = 0) -> None:
        self._file.write(json.dumps(Event(time.monotonic(), what, step)).encode() + b"\n")


def read_log(path: Path) -> list[Event]:
    """Return the events of a file, in order."""
    return [Event(*json.loads(line)) for line in path.read_bytes().splitlines()]


def fork(function: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Start ``function(*arguments)`` in a copy of this process. Only a worker may do this."""
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def run_together(function: Callable[..., Any], calls: Sequence[Sequence[Any]], seconds: float = 120) -> None:
    """Run ``function(*call)`` for each of ``calls`` at the same time, each in a process of its own.

    Raises WorkersFailed if one fails, or if they take longer than ``seconds``; all are ended then.
    """

    def start_all(worker: Worker) -> None:
        processes = [fork(function, *call) for call in calls]
        for process in processes:
            process.join()
        if failed := sum(process.exitcode != 0 for process in processes):
            raise RuntimeError(f"{failed} of {len(calls)} processes failed; what they printed says why")

    workers_of(1).run(start_all, seconds=seconds)


def arrivals(worker: Worker, sources: Iterable[int]) -> Inbox:
    """Return a queue of (source, message) in the order of arrival.

    The last message of a source is None: its own, or one that stands for its end if it was lost.
    """
    inbox: Inbox = queue.SimpleQueue()

    def follow(source: int) -> None:
        message: Any = ...
        while message is not None:
            try:
                message = worker.receive(source)
            except Gone:
                message = None
            inbox.put((source, message))

    for source in sources:
        threading.Thread(target=follow, args=(source,), daemon=True).start()
    return inbox
