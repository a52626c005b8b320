"""Processes of a comparison, one at a time: each asked to stop when this one is, and measured at its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster import subreaper
from labkit.errors import InputError

__all__ = ["Ended", "exit_code", "run_to_end"]

LOOK_SECONDS = 0.05
# ru_maxrss is in kilobytes on Linux and in bytes on macOS (getrusage(2) of both).
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Ended:
    """``code``: the exit code, or minus the signal that killed the process.

    ``peak_memory_bytes``: the largest resident set of the process or of one that it waited for; None where
    this process held more, which would hide it.
    """

    code: int
    peak_memory_bytes: int | None

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        known = -self.code in set(signal.Signals)
        return f"killed by {signal.Signals(-self.code).name if known else f'signal {-self.code}'}"


def run_to_end(command: Sequence[str], signals: Sequence[int]) -> Ended:
    """Run a command until it ends; its output goes where this process's goes.

    It runs under ``labkit.cluster.subreaper`` in a session of its own: a Ctrl-C reaches it through
    this process alone, and it doesn't outlive this process, whatever ends that.

    Args:
        command: program and arguments.
        signals: grows while this process is asked to stop (``stop_signals``). The first that comes asks
            the command to end (SIGTERM), the next one kills it.
    """
    obeyed, handed_down = 0, _handed_down()
    told, control = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", subreaper.__file__, str(told), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            pass_fds=(told,),
            start_new_session=True,
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if len(signals) > obeyed:
                with suppress(OSError):  # it has just ended
                    os.write(control, b"K" if obeyed else b"T")
                obeyed += 1
            time.sleep(LOOK_SECONDS)
    finally:
        os.close(told)
        os.close(control)  # whatever still runs ends with this
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss * MAXRSS_BYTES
    return Ended(process.returncode, peak if peak > handed_down else None)


def _handed_down() -> int:
    """Return what a new process counts towards its peak before it has done anything, in bytes.

    Until a process runs another program it shares this one's memory, and Linux counts the largest resident
    set of that (``setmax_mm_hiwater_rss`` in its fs/exec.c) for the new program, too.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def exit_code(work: Callable[[], None]) -> int:
    """Do the work of a process that was started so, and return its exit code: 2 where it was refused."""
    try:
        work()
    except InputError as error:
        print(f"labkit: error: {error}", file=sys.stderr)
        return 2
    return 0
