"""Run the child processes of a comparison: pass on requests to stop, and measure their peak memory."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labkit.cluster.reaped import start_reaped
from labkit.errors import InputError

__all__ = ["ProcessResult", "exit_code", "run_to_end"]

POLL_SECONDS = 0.05
# The unit of ru_maxrss: kilobytes on Linux, bytes on macOS (getrusage(2) of both).
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class ProcessResult:
    """``code``: the exit code, or minus the number of the signal that killed the process.

    ``peak_memory_bytes``: the largest resident set of the process or of one that it waited for. None if it is
    unknown because this process, which started it, had used more memory.
    """

    code: int
    peak_memory_bytes: int | None

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        known = -self.code in set(signal.Signals)
        return f"killed by {signal.Signals(-self.code).name if known else f'signal {-self.code}'}"


def run_to_end(
    command: Sequence[str],
    signals: Sequence[int],
    *,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> ProcessResult:
    """Run a command until it ends.

    The command runs in its own session (``start_reaped``). Ctrl-C therefore reaches it only
    through this process, and it ends when this process does, even if this process is killed.

    Args:
        command: program and arguments.
        signals: the signals that asked this process to stop, to which ``stop_signals`` adds new ones. The
            first new one asks the command to end (SIGTERM), the next one kills it.
        environment: of the command; None: that of this process.
        output: a file that takes what the command prints; None: where this process prints.
    """
    handled, inherited = 0, _inherited_peak()
    process, control = start_reaped(command, environment, stdout=output, stderr=output)
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if len(signals) > handled:
                with suppress(OSError):  # the command has just ended
                    os.write(control, b"K" if handled else b"T")
                handled += 1
            time.sleep(POLL_SECONDS)
    finally:
        os.close(control)  # ends whatever still runs
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss * MAXRSS_BYTES
    return ProcessResult(process.returncode, peak if peak > inherited else None)


def _inherited_peak() -> int:
    """Return the peak memory in bytes that a child process inherits from this one.

    Between fork and exec a child shares this process's memory, and Linux carries the largest resident set of
    that over to the new program (``setmax_mm_hiwater_rss`` in fs/exec.c).
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def exit_code(work: Callable[[], None]) -> int:
    """Do the work of a child process. Returns its exit code: 0, or 2 after printing an InputError."""
    try:
        work()
    except InputError as error:
        print(f"labkit: error: {error}", file=sys.stderr)
        return 2
    return 0
