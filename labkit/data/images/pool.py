"""Do tasks in several processes that share nothing with this one.

Neither ``multiprocessing`` nor ``concurrent.futures`` fits: their processes import the main script of the
user again, which then needs a guard, and they stay behind when this process is killed.
"""

import os
import pickle
import queue
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.data.images.worker import DONE, FAILED, PROGRESS, Work
from labkit.errors import InputError
from labkit.startup.child import python_command

__all__ = ["do_tasks", "usable_cores"]

_FEW = 64  # pictures that are read sooner than two processes start
_LOST = "lost"


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def do_tasks(
    function: Work, tasks: Sequence[Any], pictures: int, advance: Callable[[int], None]
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each task and its result, in the order in which they are done.

    Args:
        function: a function of a module; see :data:`labkit.data.images.worker.Work`.
        tasks: its arguments, one for each call.
        pictures: how many there are in all tasks; a few are done in this process.
        advance: called with numbers of pictures done.

    Raises:
        InputError: a process was killed from outside.
        Exception: what a task raised.
    """
    count = min(usable_cores(), len(tasks))
    if count < 2 or pictures <= _FEW:
        for number, task in enumerate(tasks):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as in the processes
                result = function(task, advance)
            yield number, result
        return
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        waiting.put(number)
    answers: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
    workers = [_Worker() for _ in range(count)]
    try:
        for worker in workers:
            threading.Thread(
                target=worker.work, args=(function, tasks, waiting, answers), daemon=True
            ).start()
        left = len(tasks)
        while left:
            number, kind, value = answers.get()
            if kind == PROGRESS:
                advance(value)
            elif kind == DONE:
                left -= 1
                yield number, value
            elif kind == FAILED:
                raise value
            else:
                raise InputError(
                    f"a process that read pictures ended with status {value}, perhaps for want of memory; "
                    "run the command again: it goes on where it was"
                )
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process, and the thread that gives it tasks."""

    def __init__(self) -> None:
        # From where this labkit comes; -P: modules in the working directory don't count.
        root = str(Path(__file__).resolve().parents[3])
        code = (
            f"import sys; sys.path.insert(0, {root!r}); from labkit.data.images.worker import serve; serve()"
        )
        self._process = subprocess.Popen(
            python_command("-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def work(
        self,
        function: Work,
        tasks: Sequence[Any],
        waiting: "queue.SimpleQueue[int]",
        answers: "queue.SimpleQueue[tuple[int, str, Any]]",
    ) -> None:
        """Do tasks until none is waiting; what happens is put into ``answers``."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        number = -1
        try:
            while True:
                number = waiting.get_nowait()
                pickle.dump((function, tasks[number]), requests)
                requests.flush()
                kind = PROGRESS
                while kind == PROGRESS:
                    kind, value = pickle.load(replies)
                    answers.put((number, kind, value))
        except queue.Empty:
            return
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            answers.put((number, _LOST, self._process.wait()))

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
