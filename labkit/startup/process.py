"""Child processes: start, follow, stop and await them. All but detached ones end with this process."""

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from labkit.startup import subreaper
from labkit.startup.child import REASON, child_environment, python_command
from labkit.startup.template import Template

LONGEST_LINE = 1 << 16  # bytes of an unfinished line that are buffered
POLL_SECONDS = 0.02
REAP_SECONDS = 15.0  # for the subreaper to kill a command; more than subreaper.KILL_SECONDS
# The unit of ru_maxrss: kilobytes on Linux, bytes on macOS (getrusage(2) of both).
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
NOTHING: Mapping[str, str] = MappingProxyType({})


class Child:
    """A command that ends with this process, together with everything that it starts.

    Its parent is a small process (``subreaper.py``), which ends as the command does. It kills the command and
    all that the command started when it is told to and when this process ends, even by SIGKILL. The command
    has a session of its own: Ctrl-C reaches it only through this process. Threads may share a child.

    Args:
        command: program and arguments.
        variables: additions to this process's environment.
        stdin, stdout, stderr: as for ``subprocess.Popen``.
        folder: where it runs; None: where this process does.
        namespaces: files of those in which it runs, with its parent (``subreaper.enter``).
        pass_fds: open files of this process that the command gets under the same numbers.
        template: to fork it from if that can be done, without ``stdin``, ``folder`` and ``pass_fds``.

    Raises OSError if the system can't create a process.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] = NOTHING,
        *,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.STDOUT,
        folder: Path | None = None,
        namespaces: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        template: Template | None = None,
    ) -> None:
        self.began = time.monotonic()
        #: the largest resident set, in bytes, of the command or of a process that it waited for; None while
        #: it runs, and where it is unknown: this process has used more memory, or the command shares the
        #: template's
        self.peak_memory_bytes: int | None = None
        self._code: int | None = None
        self._lock = threading.Lock()
        self._reason = tempfile.NamedTemporaryFile(prefix="labkit-")  # noqa: SIM115 - closed with the child
        self._inherited_peak = peak_memory_bytes()
        environment = child_environment({**variables, REASON: self._reason.name})
        forked = template and template.start(command, environment, stdout, stderr, namespaces)
        self._popen: subprocess.Popen[bytes] | None = None
        #: the pipe to its input, if it was asked for
        self.stdin: IO[bytes] | None = None
        if forked:
            pid, self._control, streams = forked
        else:
            reading, self._control = os.pipe()
            words = (str(reading), str(os.getpid()), ":".join(namespaces), *command)
            try:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", subreaper.__file__, *words],
                    cwd=folder,
                    env=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(reading, *pass_fds),
                    start_new_session=True,
                    bufsize=0,
                )
            except BaseException:
                os.close(self._control)
                self._reason.close()
                raise
            finally:
                os.close(reading)
            pid, self.stdin = self._popen.pid, self._popen.stdin
            streams = [pipe for pipe in (self._popen.stdout, self._popen.stderr) if pipe is not None]
        #: the process id of the command's parent
        self.pid = pid
        #: the pipes of its output that were asked for
        self.streams = tuple(streams)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def reason(self) -> str:
        """The sentence with which a ``labkit`` command, or a task of its cluster, refused; "" without one."""
        self._reason.seek(0)
        return self._reason.read().decode(errors="replace")

    def lines(self) -> Iterator[str]:
        """Yield the lines of what it prints until it, and all that hold its output open, have ended."""
        lines = Lines()
        while data := self.streams[0].read(1 << 16):
            yield from lines.feed(data)
        yield from lines.end()

    def poll(self) -> int | None:
        """Return its exit code, or minus the number of the signal that killed it; None while it runs."""
        with self._lock:
            if self._code is None:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
                    if self._popen is not None:
                        self._popen.returncode = self._code
                        peak = usage.ru_maxrss * MAXRSS_BYTES
                        self.peak_memory_bytes = peak if peak > self._inherited_peak else None
            return self._code

    def wait(self, seconds: float = math.inf) -> int | None:
        """Wait until it ends, ``seconds`` at most. Returns what ``poll`` returns."""
        give_up = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < give_up:
            time.sleep(POLL_SECONDS)
        return code

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Send SIGTERM to the command's process group; SIGINT where that is the ``number``."""
        self._tell(b"I" if number == signal.SIGINT else b"T")

    def kill(self) -> None:
        """Kill the command and all that it started."""
        self._tell(b"K")
        self._signal(signal.SIGCONT)  # in case its parent is stopped, too

    def stop(self, seconds: float) -> None:
        """Ask it to end, and kill it if it goes on after ``seconds``."""
        self.terminate()
        if self.wait(seconds) is None:
            self.kill()
            self.wait(REAP_SECONDS)

    def close(self) -> None:
        """Kill what still runs and wait for its end. A second call does nothing."""
        self.kill()
        with self._lock:
            if self._control < 0:
                return
            os.close(self._control)
            self._control = -1
        if self.wait(REAP_SECONDS) is None:  # its parent hangs; the kernel kills the command with it
            self._signal(signal.SIGKILL)
            self.wait()
        for stream in (self.stdin, *self.streams, self._reason):
            if stream is not None:
                stream.close()

    def _signal(self, number: int) -> None:
        with self._lock:  # its number may be another process's once ``poll`` has seen the end
            if self._code is None:
                os.kill(self.pid, number)

    def _tell(self, request: bytes) -> None:
        with self._lock, suppress(OSError):  # it has ended
            if self._control >= 0:  # a closed descriptor's number is used again
                os.write(self._control, request)


def usable_cores() -> int:
    """Return how many cores this process may use; macOS tells only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """Return the peak memory of this process, which a child inherits; 0 where the system doesn't tell.

    Between fork and exec a child shares this process's memory, and Linux carries the largest resident set of
    that over to the new program (``setmax_mm_hiwater_rss`` in fs/exec.c).
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def start_detached(
    arguments: Sequence[str], log: IO[bytes], variables: Mapping[str, str] = NOTHING
) -> subprocess.Popen[bytes]:
    """Start ``labkit`` with these arguments, in a session of its own and without input.

    It outlives this process, its terminal and a signal to its process group. No shell sees the arguments.

    Args:
        arguments: such as ``["resume", "/home/me/runs/first"]``.
        log: takes its output.
        variables: additions to its environment.

    Raises OSError if the system can't create a process.
    """
    process = subprocess.Popen(
        python_command("-m", "labkit", *arguments),
        env=child_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # While this process lives, nobody else takes note of the end, and a zombie would stay.
    threading.Thread(target=process.wait, name="labkit detached", daemon=True).start()
    return process


class Lines:
    """Splits bytes into lines. Of a line that was redrawn (``\\r``) only the last state is kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; return the lines that are now complete."""
        *whole, rest = (self._rest + data).split(b"\n")
        *earlier, current = rest.rsplit(b"\r", 1)
        self._rest = b"".join(_last_state(state) + b"\r" for state in earlier) + current
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        return [_last_state(line).decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """Return the last, unfinished line at the end of the stream."""
        return self.feed(b"\n") if self._rest else []


def _last_state(line: bytes) -> bytes:
    return next((state for state in reversed(line.split(b"\r")) if state.strip()), b"")


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def described_exit(code: int) -> str:
    """Return how a process ended, in words: its exit code, or the signal that killed it."""
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
