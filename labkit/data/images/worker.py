"""One of the processes that read pictures: takes tasks on standard input, answers on standard output.

It ends when its input ends, so it doesn't outlive the process that started it, however that one ended.
"""

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["DONE", "FAILED", "PROGRESS", "Work", "serve"]

# The function of a task is called with its argument, and with a function that it calls now and then with the
# number of pictures that it has dealt with since the last time.
Work = Callable[[Any, Callable[[int], None]], Any]
PROGRESS, DONE, FAILED = "progress", "done", "failed"


def serve() -> None:
    """Do tasks until there are no more."""
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

    def report(count: int) -> None:
        send(PROGRESS, count)

    while True:
        try:
            function, task = pickle.load(requests)
        except (EOFError, pickle.UnpicklingError):
            return
        try:
            result = function(task, report)
        except BrokenPipeError:
            return
        except Exception as error:
            send(FAILED, error)
        else:
            send(DONE, result)
