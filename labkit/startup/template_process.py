"""The process that imports TensorFlow and from which tasks are forked: the other side of ``template.py``.

Run as a program: ``python -P -m labkit.startup.template_process SOCKET LAUNCHER OF_CLUSTER``. It runs no
operation and starts no thread. For each task it forks the task's parent (``subreaper.supervise``), which
becomes a child of the launcher. A task takes nothing else from it: its environment, folder, files and
namespaces come with the request, and it reads labkit's modules itself.
"""

import ctypes
import io
import json
import os
import runpy
import signal
import site
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from labkit.errors import InputError
from labkit.startup import subreaper
from labkit.startup.child import python_command
from labkit.startup.quiet_import import import_tensorflow, leave_out_extras, quieten_tensorflow

PR_SET_MM, PR_SET_MM_MAP = 35, 14  # <linux/prctl.h>
_shown = ctypes.create_string_buffer(0)


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
    sys.orig_argv, sys.argv = words, ["", *words[len(python_command("-m", "labkit")) :]]
    for name in ("sitecustomize", "usercustomize"):  # as each new Python does
        sys.modules.pop(name, None)
    site.execsitecustomize()
    if site.ENABLE_USER_SITE:
        site.execusercustomize()
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
    if threading.active_count() > 1:  # that something else has started, and that a task wouldn't have
        os._exit(1)
    connection.send(b"ready")
    serve(connection, {name: value for name, value in os.environ.items() if before.get(name) != value})


if __name__ == "__main__":
    main()
    runpy.run_module("labkit", run_name="__main__", alter_sys=True)
