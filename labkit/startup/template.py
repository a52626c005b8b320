"""Processes forked from one that has imported TensorFlow, in place of importing it in each of them.

A launcher has one ``Template``: a child process, this module as a program, which imports TensorFlow, runs no
operation and starts no thread. For each task it forks the task's parent (``subreaper.supervise``), which then
becomes a child of the launcher, as if the launcher had started it. So nothing that runs depends on the
template: a task ends with its parent and with the launcher, whether the template is there or not.

A task takes nothing else from the template. Its environment, folder, files and namespaces come with the
request, and it reads labkit's modules itself.
"""

import ctypes
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from labkit.errors import InputError
from labkit.startup import subreaper
from labkit.startup.child import child_environment, python_command
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras, quieten_tensorflow

IMPORT_SECONDS = 120.0  # TensorFlow's import takes 5 s, more on a busy machine or a network's disk
FORK_SECONDS = 10.0  # takes 0.05 s
FORKED = python_command("-m", "labkit", "train")  # what a command begins with that can be forked
PR_SET_MM, PR_SET_MM_MAP = 35, 14  # <linux/prctl.h>
_shown = ctypes.create_string_buffer(0)


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
                python_command("-m", "labkit.startup.template", *words),
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
            message = (
                "the process that tasks are forked from was lost; from now on each imports TensorFlow itself"
            )
            print(f"labkit: {message}", file=sys.stderr, flush=True)


# ---- the template's side -------------------------------------------------------------------------------


def serve(connection: socket.socket, imported: Mapping[str, str]) -> None:
    """Fork a task at each request, until the launcher has ended. Returns only in a task.

    ``imported``: the variables that the import of TensorFlow has set.
    """
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1, 4)
        if not message:
            os._exit(0)
        between = os.fork()
        if between == 0:
            try:
                return _become_task(connection, imported, *files)
            except BaseException as error:
                print(f"labkit: error: the task can't be forked: {error}", file=sys.stderr, flush=True)
                os._exit(1)
        for file in files:
            os.close(file)
        if os.waitpid(between, 0)[1]:  # the system can't create a process
            os._exit(1)


def _become_task(
    connection: socket.socket, imported: Mapping[str, str], request: int, control: int, *outputs: int
) -> None:
    """Fork the parent of the task, which forks the task, and end. Returns in the task."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    with open(request) as file:
        launcher, folder, words, environment, namespaces = json.load(file)
    if os.getppid() != launcher:  # it has ended, or couldn't take this process over
        os._exit(1)
    os.setsid()
    for number, name, output in zip((1, 2), ("stdout", "stderr"), outputs, strict=True):
        os.dup2(output, number)
        os.close(output)
        before, raw = getattr(sys, name), open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(raw, before.encoding, before.errors, write_through=True)  # as Python's -u
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    with connection:
        connection.send(str(os.getpid()).encode())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update({**environment, **imported})
    subreaper.enter(namespaces)
    report = subreaper.supervise(control, launcher)
    _show(words, environment)
    for name in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
        del sys.modules[name]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.orig_argv, sys.argv = words, ["", *words[len(FORKED) - 1 :]]
    os.close(report)


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show what a program would have begun with where ``ps`` looks for it (``struct prctl_mm_map``)."""
    global _shown  # must not be freed
    parts = words, map("=".join, environment.items())
    texts = ["".join(f"{each}\0" for each in part).encode(errors="surrogateescape") for part in parts]
    _shown = ctypes.create_string_buffer(b"".join(texts))
    begin, (size, more) = ctypes.addressof(_shown), map(len, texts)
    with open("/proc/self/stat") as file:  # its second field, a name, may hold spaces; proc(5) counts from 1
        fields = [0] * 4 + [int(field) for field in file.read().rpartition(")")[2].split()[1:]]
    libc = subreaper.load_libc()
    libc.sbrk.restype = ctypes.c_void_p
    places = (*fields[26:28], *fields[45:48], libc.sbrk(0), fields[28], begin, begin + size, begin + size)
    wanted = struct.pack("=12Q2I", *places, begin + size + more, 0, 0, 2**32 - 1)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, wanted, ctypes.c_ulong(len(wanted)), 0)


def main() -> None:
    """Import TensorFlow and serve. Returns only in a task."""
    connection, launcher, of_cluster = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    connection.set_inheritable(False)
    subreaper.load_libc().prctl(subreaper.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # it ended before the line above
        os._exit(1)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as ``labkit.__main__`` begins
    before = dict(os.environ)
    if of_cluster == "1":
        quieten_tensorflow(os.environ)
    leave_out_extras()
    try:
        import_tensorflow()
    except InputError:  # the tasks will say it
        os._exit(1)
    connection.send(b"ready")
    serve(connection, {name: value for name, value in os.environ.items() if before.get(name) != value})


if __name__ == "__main__":
    main()
    runpy.run_module("labkit", run_name="__main__", alter_sys=True)
