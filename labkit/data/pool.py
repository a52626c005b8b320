"""Do tasks in several processes that share nothing with this one, and show how far they are.

Neither ``multiprocessing`` nor ``concurrent.futures`` fits: their processes import the main script of the
user again, which then needs a guard, and they stay behind when this process is killed. These end with it
(``labkit.startup.process.Child``).
"""

import io
import os
import pickle
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from labkit.errors import InputError
from labkit.startup.child import python_command
from labkit.startup.process import Child, usable_cores

# The function of a task is called with its argument, and with a function that it calls now and then with the
# number of pictures that it has dealt with since the last time.
Work = Callable[[Any, Callable[[int], None]], Any]
_PROGRESS, _DONE, _FAILED, _LOST = "progress", "done", "failed", "lost"
_FEW = 64  # pictures that are read sooner than two processes start
_FEW_TO_SHOW = 1_000  # pictures that are read in a second need no lines


def do_tasks(
    function: Work,
    tasks: Sequence[Any],
    pictures: int,
    advance: Callable[[int], None],
    *,
    alone: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each task and its result, in the order in which they are done.

    Args:
        function: a function of a module; see ``Work``.
        tasks: its arguments, one for each call.
        pictures: how many there are in all tasks; a few are done in this process.
        advance: called with numbers of pictures done.
        alone: does all of them in this process.

    Raises:
        InputError: a process was killed from outside.
        Exception: what a task raised.
    """
    count = min(usable_cores(), len(tasks))
    if alone or count < 2 or pictures <= _FEW:
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
    with ExitStack() as stack:  # which ends the processes, whatever they do
        for _ in range(count):
            command = python_command("-c", "from labkit.data.pool import serve; serve()")
            child = stack.enter_context(Child(command, stdin=subprocess.PIPE, stderr=None))
            arguments = (child, function, tasks, waiting, answers)
            threading.Thread(target=_give_tasks, args=arguments, daemon=True).start()
        left = len(tasks)
        while left:
            number, kind, value = answers.get()
            if kind == _PROGRESS:
                advance(value)
            elif kind == _DONE:
                left -= 1
                yield number, value
            elif kind == _FAILED:
                raise value
            else:
                raise InputError(
                    f"a process that read pictures ended with status {value}, perhaps for want of memory; "
                    "run the command again: it goes on where it was"
                )


def _give_tasks(
    child: Child,
    function: Work,
    tasks: Sequence[Any],
    waiting: "queue.SimpleQueue[int]",
    answers: "queue.SimpleQueue[tuple[int, str, Any]]",
) -> None:
    """Let a process that runs ``serve`` do tasks until none is waiting; put what happens into ``answers``."""
    raw: tuple[Any, Any] = child.stdin, child.streams[0]
    requests, replies, number = io.BufferedWriter(raw[0]), io.BufferedReader(raw[1]), -1
    try:
        while True:
            number = waiting.get_nowait()
            pickle.dump((function, tasks[number]), requests)
            requests.flush()
            kind = _PROGRESS
            while kind == _PROGRESS:
                kind, value = pickle.load(replies)
                answers.put((number, kind, value))
    except queue.Empty:
        return
    except (OSError, EOFError, ValueError, pickle.UnpicklingError):
        answers.put((number, _LOST, child.wait()))


def serve() -> None:
    """Do tasks from standard input, with the answers on standard output, until no more come."""
    warnings.simplefilter("ignore")  # of Pillow, about oddities of files that it can read
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may get between the answers

    def send(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    while True:
        try:
            function, task = pickle.load(requests)
        except (EOFError, pickle.UnpicklingError):  # the process that gives tasks was killed
            return
        try:
            result = function(task, lambda count: send(_PROGRESS, count))
        except Exception as error:
            send(_FAILED, error)
        else:
            send(_DONE, result)


class Display:
    """Shows how much of something is done; ``with`` starts and ends it.

    A bar on a terminal, a line for each quarter elsewhere.

    Args:
        what: is done.
        total: how many images, or bytes; None where nobody knows.
        announce: called with the lines.
        done: how many already are.
        in_bytes: whether bytes are counted.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        announce: Callable[[str], None],
        *,
        done: int = 0,
        in_bytes: bool = False,
    ) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        counts = (
            (progress.DownloadColumn(), progress.TransferSpeedColumn())
            if in_bytes
            else (progress.MofNCompleteColumn(),)
        )
        self._is_short = not in_bytes and (total or 0) < _FEW_TO_SHOW
        self._bar = progress.Progress(
            *(progress.TextColumn("{task.description}"), progress.BarColumn()),
            *(*counts, progress.TimeRemainingColumn()),
            console=console,
            disable=not console.is_terminal or self._is_short,
            transient=not in_bytes,
        )
        self._task = self._bar.add_task(what, total=total, completed=done)
        self._what, self._total, self._announce, self._in_bytes = what, total, announce, in_bytes
        self._done = done

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, count: int) -> None:
        """Count ``count`` more as done."""
        before, self._done = self._done, self._done + count
        done, total = self._done, self._total
        if not self._bar.disable:
            self._bar.update(self._task, completed=done)
        elif total and not self._is_short and 4 * done // total > 4 * before // total:
            counts = f"{done:,} of {total:,} images"
            if self._in_bytes:
                counts = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
            self._announce(f"{self._what}: {counts}")
