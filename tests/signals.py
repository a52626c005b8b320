"""Signals of the processes that tests start."""

import signal

from labkit.startup.interruption import REQUESTS

__all__ = ["as_from_a_terminal"]


def as_from_a_terminal() -> None:
    """Take each request to stop by default; for ``preexec_fn``.

    Tests under nohup ignore SIGHUP, tests in the background SIGINT, and what they start inherits that.
    """
    for number in REQUESTS:
        signal.signal(number, signal.SIG_DFL)
