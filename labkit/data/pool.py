"""Do tasks in several processes that share nothing with this one, and show how far they are.

Neither ``multiprocessing`` nor ``concurrent.futures`` fits: their processes import the main script of the
user again, which then needs a guard, and they stay behind when this process is killed.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.startup.child import python_command

# The function of a task is called with its argument, and with a function that it calls now and then with the
# number of pictures that it has dealt with since the last time.
Work = Callable[[Any, Callable[[int], None]], Any]
_PROGRESS, _DONE, _FAILED, _LOST = "progress", "done", "failed", "lost"
_FEW = 64  # pictures that are read sooner than two processes start
_FEW_TO_SHOW = 1_000  # pictures that are read in a second need no lines


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


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
    workers = [_Worker() for _ in range(count)]
    try:
        for worker in workers:
            arguments = (function, tasks, waiting, answers)
            threading.Thread(target=worker.work, args=arguments, daemon=True).start()
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
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process, and the thread that gives it tasks."""

    def __init__(self) -> None:
        # From where this labkit comes; -P: modules in the working directory don't count.
        root = str(Path(__file__).resolve().parents[2])
        code = f"import sys; sys.path.insert(0, {root!r}); from labkit.data.pool import serve; serve()"
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
                kind = _PROGRESS
                while kind == _PROGRESS:
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


def serve() -> None:
    """Do tasks from standard input until there are no more, with the answers on standard output.

    The input ends with the process that started this one, however that ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    warnings.simplefilter("ignore")  # of Pillow, about oddities of files that it can read
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed may get between the answers
    parent = os.getppid()

    def send(kind: str, value: Any) -> None:
        if os.getppid() != parent:
            raise SystemExit
        pickle.dump((kind, value), answers)
        answers.flush()

    while True:
        try:
            function, task = pickle.load(requests)
        except (EOFError, pickle.UnpicklingError):
            return
        try:
            result = function(task, lambda count: send(_PROGRESS, count))
        except BrokenPipeError:
            return
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
