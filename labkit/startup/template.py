"""Processes forked from one that has imported TensorFlow, in place of importing it in each of them.

A launcher has one ``Template``, a child process (``template_process.py``). What is forked from it becomes a
child of the launcher, as if the launcher had started it. So nothing that runs depends on the template: a task
ends with its parent and with the launcher, whether the template is there or not.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from labkit.startup import subreaper
from labkit.startup.child import child_environment, python_command

IMPORT_SECONDS = 120.0  # TensorFlow's import takes 5 s, more on a busy machine or a network's disk
FORK_SECONDS = 10.0  # takes 0.05 s
FORKED = python_command("-m", "labkit", "train")  # what a command begins with that can be forked


class Template:
    """The launcher's side. Needs Linux, and a machine without a GPU, whose driver doesn't survive a fork.

    It ends with ``close`` and with the thread that made it, even by SIGKILL. Threads may share it.

    Args:
        of_cluster: whether its tasks are those of a cluster (``quieten_tensorflow``).
    """

    def __init__(self, *, of_cluster: bool) -> None:
        self._lock = threading.RLock()
        self._can_fork: bool | None = None  # not yet
        self._give_up = time.monotonic() + IMPORT_SECONDS
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = (theirs.fileno(), os.getpid(), int(of_cluster))
            self._process = subprocess.Popen(
                python_command("-m", "labkit.startup.template_process", *words),
                env=child_environment({}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def close(self) -> None:
        """End it. What was forked from it goes on."""
        self._can_fork = False
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def ready(self) -> bool:
        """Return whether there is nothing to wait for: TensorFlow is imported, or the template is lost."""
        with self._lock:
            if self._can_fork is None:
                if self._received(0.0):
                    self._can_fork = True
                elif time.monotonic() > self._give_up:
                    self._lose()
            return self._can_fork is not None

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int | IO[Any] | None,
        stderr: int | IO[Any] | None,
        namespaces: Sequence[str],
    ) -> tuple[int, int, list[IO[bytes]]] | None:
        """Fork a task; the arguments are those of ``labkit.startup.process.Child``.

        Returns the process id of its parent, a child of this process; the writing end of the pipe that
        controls it; and the pipes that were asked for. Returns None if the task has to be a new program: its
        command isn't ``labkit train``, or the template isn't ready or is lost.
        """
        outputs: list[int] = []
        streams: list[IO[bytes]] = []
        with self._lock, ExitStack() as passed:
            if list(command[: len(FORKED)]) != FORKED or not self.ready() or not self._can_fork:
                return None
            for wanted, own in ((stdout, 1), (stderr, 2)):
                if wanted == subprocess.PIPE:
                    reading, writing = os.pipe()
                    passed.callback(os.close, writing)
                    streams.append(open(reading, "rb", buffering=0))  # noqa: SIM115 - the caller's
                elif wanted == subprocess.STDOUT:
                    writing = outputs[0]
                else:
                    writing = (
                        own if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
                    )
                outputs.append(writing)
            request = passed.enter_context(tempfile.TemporaryFile("w+"))
            json.dump([os.getpid(), os.getcwd(), list(command), dict(environment), list(namespaces)], request)
            request.seek(0)
            reading, control = os.pipe()
            passed.callback(os.close, reading)
            # The parent of the task loses its own parent, and comes to this process only by this setting.
            prctl, answer = subreaper.load_libc().prctl, b""
            prctl(subreaper.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            with suppress(OSError):  # it is lost
                socket.send_fds(self._socket, [b"."], [request.fileno(), reading, *outputs])
                answer = self._received(FORK_SECONDS)
            prctl(subreaper.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            if answer:
                return int(answer), control, streams
            self._lose()
            os.close(control)
            for stream in streams:
                stream.close()
            return None

    def _received(self, seconds: float) -> bytes:
        """Return what it says within ``seconds``; b"" for nothing. It is lost where it can't say anything."""
        self._socket.settimeout(seconds)
        try:
            answer = self._socket.recv(100)
        except (BlockingIOError, TimeoutError):
            return b""
        if not answer:
            self._lose()
        return answer

    def _lose(self) -> None:
        if self._can_fork is not False:
            self.close()
            message = "the process from which tasks are forked was lost; from now on, each imports TensorFlow"
            print(f"labkit: {message} itself", file=sys.stderr, flush=True)
