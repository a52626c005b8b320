"""Processes of a local cluster: started, heard, watched, killed and reaped from one loop.

Each task runs under a keeper of its own (``keeper.py``), a small process that ends the task, with all that
the task started, when it is told to and when the launcher is gone, even by SIGKILL.
"""

import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster import subreaper as keeper
from labkit.distributed.heartbeat import PeerState, beat_path
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask
from labkit.distributed.tf_config import make_tf_config

__all__ = ["Ending", "Lines", "Supervisor", "stop_signals"]

LONGEST_LINE = 1 << 16  # bytes of a line without an end that are held back
DRAIN = 2.0  # seconds for the output of a task that has ended, where something else holds its pipes
REAP = 15.0  # seconds for the keepers to kill; more than keeper.LAST_LOOKS
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """How a task ended: ``code`` is its exit code, or minus the signal that killed it.

    ``killed_because`` says why the launcher killed it, and is empty where it didn't.
    """

    name: str
    code: int
    killed_because: str = ""

    @property
    def stopped(self) -> bool:
        """Return whether it ended on request, after a checkpoint."""
        return self.code in [128 + number for number in REQUESTS]

    @property
    def dead(self) -> bool:
        """Return whether it was killed, or gave up because of another: a new try makes sense."""
        by_signal = self.code < 0 or (self.code > 128 and not self.stopped)  # a shell says 137 for SIGKILL
        return by_signal or self.code == EXIT_LOST_PEER

    @property
    def failed(self) -> bool:
        """Return whether it failed in a way that a new try would repeat."""
        return self.code != 0 and not self.stopped and not self.dead

    def __str__(self) -> str:
        if self.killed_because:
            return f"{self.name} {self.killed_because} and was killed"
        if self.code == EXIT_LOST_PEER:
            return f"{self.name} lost a peer (exit code {self.code})"
        if self.dead:
            number = -self.code if self.code < 0 else self.code - 128
            known = number in set(signal.Signals)
            return f"{self.name} was killed by {signal.Signals(number).name if known else f'signal {number}'}"
        if self.stopped:
            return f"{self.name} was stopped by {signal.Signals(self.code - 128).name}"
        return f"{self.name} failed (exit code {self.code})" if self.code else f"{self.name} ended"


class Lines:
    """Bytes as they arrive → whole lines. Of a line that was redrawn (``\\r``) the last state is kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that they complete."""
        *whole, rest = (self._rest + data).split(b"\n")
        *earlier, current = rest.rsplit(b"\r", 1)
        self._rest = b"".join(_last_state(state) + b"\r" for state in earlier) + current
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        return [_last_state(line).decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """Return what is left, at the end of the stream."""
        return self.feed(b"\n") if self._rest else []


def _last_state(line: bytes) -> bytes:
    return next((state for state in reversed(line.split(b"\r")) if state.strip()), b"")


class _Process:
    """One life of one task."""

    def __init__(
        self, task: ClusterTask, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ):
        self.sighting = PeerState(task.name, task.address, beat_path(folder, task.name))
        self.was_alive = False
        self.killed_because = ""
        self.silent_since: float | None = None
        control, self._control = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, str(control), str(os.getpid()), *command],
                env={**environment, "TF_CONFIG": make_tf_config(task), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # a pipe of its own, so that no line is torn by one of the other
                pass_fds=(control,),
                start_new_session=True,  # Ctrl-C in the terminal is for the launcher, which passes it on
                bufsize=0,
            )
        except BaseException:
            os.close(self._control)
            raise
        finally:
            os.close(control)
        pipes = [pipe for pipe in (self.popen.stdout, self.popen.stderr) if pipe is not None]
        self.streams = {pipe.fileno(): Lines() for pipe in pipes}

    def tell(self, word: bytes) -> None:
        with suppress(OSError):  # it has ended
            os.write(self._control, word)

    def frozen(self, elapsed: float, timeout: float) -> bool:
        """Return whether its sign of life, once it was there, stands still for ``timeout`` seconds."""
        seen = self.sighting
        seen.look("", elapsed, timeout)
        self.was_alive = self.was_alive or seen.alive
        gone = seen.beat is None or seen.beat.phase in ("left", "lost")
        return self.was_alive and seen.still >= timeout and not gone

    def close(self) -> None:
        os.close(self._control)
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


class Supervisor:
    """The tasks that run, by name; their output, line by line with a prefix, goes to ``output``.

    Args:
        command: what every task runs.
        environment: of a task, what is added to this process's own, beside TF_CONFIG.
        folder: where the tasks' signs of life lie.
        output: takes one line without its end.
        stall_timeout: seconds without a sign of life after which a task counts as frozen and is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Callable[[ClusterTask], Mapping[str, str]],
        folder: Path,
        output: Callable[[str], None],
        stall_timeout: float,
    ) -> None:
        self._command, self._folder, self._output = list(command), folder, output
        self._environment = environment
        self._stall_timeout, self._interval = stall_timeout, min(1.0, stall_timeout / 5)
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, _Process] = {}
        self._looked = time.monotonic()

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._processes)

    def say(self, line: str) -> None:
        """Say something of the launcher's own."""
        self._output(f"[cluster] {line}")

    def start(self, task: ClusterTask) -> None:
        """Start a task. Raises OSError where the system has no room for a process."""
        process = _Process(task, self._command, {**os.environ, **self._environment(task)}, self._folder)
        self._processes[task.name] = process
        for stream in process.streams:
            self._selector.register(stream, selectors.EVENT_READ, task.name)

    def terminate(self, names: Iterable[str]) -> None:
        """Ask tasks to end: SIGTERM to the process group of each that runs."""
        for name in self.running.intersection(names):
            self._processes[name].tell(b"T")

    def kill(self, names: Iterable[str], because: str) -> None:
        """Kill tasks with all that they started. ``because`` is a verb phrase: "did not end in time"."""
        for name in self.running.intersection(names):
            process = self._processes[name]
            if not process.killed_because and process.popen.poll() is None:
                process.killed_because = because
                process.tell(b"K")
                process.popen.send_signal(signal.SIGCONT)  # somebody may have stopped the keeper, too

    def poll(self, timeout: float) -> list[Ending]:
        """Pass on output as it comes, for ``timeout`` seconds at most; return the tasks that have ended."""
        for key, _ in self._selector.select(timeout):
            self._read(key.data, key.fd)
        self._look()
        return [self._remove(name) for name in list(self._processes) if self._over(name)]

    def close(self) -> None:
        """Kill what still runs, and reap it."""
        self.kill(self.running, "was left over")
        end = time.monotonic() + REAP
        while self._processes and time.monotonic() < end:
            try:
                self.poll(0.05)
            except Exception:  # such as a closed pipe, which is what may have brought us here
                self._output = lambda line: None
        for name in list(self._processes):  # its keeper doesn't answer; the kernel ends the task with it
            self._processes[name].popen.kill()
            self._processes[name].popen.wait()
            self._remove(name)
        self._selector.close()

    def _read(self, name: str, stream: int) -> None:
        process = self._processes[name]
        data = os.read(stream, 1 << 16)
        lines = process.streams[stream].feed(data) if data else process.streams[stream].end()
        if not data:
            self._selector.unregister(stream)
            del process.streams[stream]
        for line in lines:
            self._output(f"[{name}] {line}")

    def _look(self) -> None:
        now = time.monotonic()
        elapsed = now - self._looked
        if elapsed < self._interval:
            return
        self._looked = now
        for name, process in self._processes.items():
            # As in labkit.distributed.peers, what passed while this very process slept counts for little.
            if process.frozen(min(elapsed, 2 * self._interval), self._stall_timeout):
                self.kill([name], f"gave no sign of life for {self._stall_timeout:g} s")

    def _over(self, name: str) -> bool:
        process = self._processes[name]
        if process.popen.poll() is None:
            return False
        if process.silent_since is None:
            process.silent_since = time.monotonic()
        return not process.streams or time.monotonic() - process.silent_since > DRAIN

    def _remove(self, name: str) -> Ending:
        process = self._processes.pop(name)
        for stream, lines in process.streams.items():
            self._selector.unregister(stream)
            for line in lines.end():
                self._output(f"[{name}] {line}")
        process.close()
        return Ending(name, process.popen.returncode, process.killed_because)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in the list that this gives, instead of acting on them.

    Those that are ignored, as SIGHUP under nohup, stay so. What follows within a second is one request: a
    closing terminal and its shell both send SIGHUP. Outside of the main thread the list stays empty.
    """
    came: list[int] = []
    last = -math.inf

    def note(number: int, frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > 1.0:
            came.append(number)
            last = time.monotonic()

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.getsignal(number) for number in REQUESTS}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
