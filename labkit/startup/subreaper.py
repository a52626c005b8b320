"""The parent process of one task: it ends with the task or the launcher, and leaves no process behind.

Run as a script: ``python -I -S subreaper.py CONTROL LAUNCHER NAMESPACES COMMAND…``. It starts the command in
a new session and ends as the command does, with the same exit code or by the same signal.
``template_process.py`` calls ``supervise`` for a task that it forks.

CONTROL is the reading end of a pipe whose writing end only the launcher holds. ``T`` in it sends SIGTERM to
the command's process group, ``I`` SIGINT, and ``K`` kills it. The end of the pipe means that the launcher has
ended, for whatever reason, and kills as well. LAUNCHER is the launcher's process id, in case another process
has inherited the writing end. NAMESPACES are files such as /proc/1/ns/net, with ``:`` between them.

Processes that the command started are killed with it. On Linux this process is a subreaper (prctl): when the
command ends, its descendants in any session or group become children of this process, which kills them all.
If this process itself is killed, the kernel kills the command (PR_SET_PDEATHSIG). On other systems only the
command's process group is killed.

Imports nothing from labkit and little else, because a cluster waits for this process to start.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A batch system sends these to the command and the launcher as well: here they have no effect.
ANNOUNCEMENTS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
COULD_NOT_START = 127  # as shells return it
KILL_SECONDS = 10.0  # processes that are left after this can't be killed by a signal


def load_libc() -> Any:
    """Return the C library with ``prctl`` and ``setns``; None on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def enter(namespaces: Sequence[str]) -> None:
    """Move this process, which has one thread, into the namespaces of these files, in their order."""
    try:
        files = [open(name) for name in namespaces]  # noqa: SIM115 - all, before the first changes what is seen
        for file in files:
            if load_libc().setns(file.fileno(), 0):
                raise OSError(f"this machine refused to let a process enter {file.name}")
            file.close()
    except OSError as error:
        print(f"labkit: error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def supervise(control: int, launcher: int) -> int:
    """Fork the task, in a new session, and end as it does. Returns only in the task.

    Returns a descriptor that the task closes once it runs, when its session can be signalled. What the task
    writes to it before that is the reason why it can't run.
    """
    os.set_inheritable(control, False)
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    handled = []
    for number in (signal.SIGCHLD, *REQUESTS, *ANNOUNCEMENTS):
        # Ignored signals (SIGHUP under nohup) stay ignored, for the command as well; SIGCHLD is needed.
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
            handled.append(number)
    libc = load_libc()
    if libc is not None:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
    status, report = os.pipe()
    task = os.fork()
    if task == 0:
        os.setsid()
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:  # it ended before the line above
                os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        for descriptor in (control, wake, alarm, status):
            os.close(descriptor)
        return report
    os.close(report)
    trouble = os.read(status, 1000)
    os.close(status)
    if trouble:
        os.waitpid(task, 0)
        print(f"labkit: error: {trouble.decode()}", file=sys.stderr, flush=True)
        os._exit(COULD_NOT_START)
    return end_like(watch(task, control, launcher, wake))


def children() -> list[int]:
    """Return the process ids of this process's children; an empty list without /proc."""
    found, me = [], str(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                if file.read().rpartition(")")[2].split()[1] == me:
                    found.append(int(entry))
    return found


def kill_group(task: int, number: int) -> None:
    """Send a signal to the command's process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: only zombies (macOS)
        os.killpg(task, number)


def reap(task: int) -> tuple[int | None, bool]:
    """Reap ended children; return the command's wait status if it is among them, and whether any are left."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        if pid == task:
            ended = status


def kill_all(task: int) -> int:
    """Kill the command and all its descendants; return the command's wait status (SIGKILL if unknown)."""
    result, left, end = int(signal.SIGKILL), True, time.monotonic() + KILL_SECONDS
    kill_group(task, signal.SIGKILL)
    while left and time.monotonic() < end:
        for pid in children():  # children of a killed child show up here in the next round
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        status, left = reap(task)
        result = result if status is None else status
        if left:
            time.sleep(0.005)
    return result


def watch(task: int, control: int, launcher: int, wake: int) -> int:
    """Wait until the command has ended or must end; return its wait status."""
    while True:
        ready = select.select([control, wake], [], [], 1.0)[0]
        status, _ = reap(task)
        if status is not None:
            kill_all(task)
            return status
        told = os.read(control, 100) if control in ready else b"-"
        if not told or b"K" in told or os.getppid() != launcher:
            return kill_all(task)
        # Pass on requests to this process; SIGCHLD, from an ended child, wakes it as well.
        signals = os.read(wake, 100) if wake in ready else b""
        if b"I" in told:
            kill_group(task, signal.SIGINT)
        if b"T" in told or any(number in REQUESTS for number in signals):
            kill_group(task, signal.SIGTERM)


def end_like(status: int) -> NoReturn:
    """End as the command did, by its wait status."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has written its own core dump
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # for signals that don't end a process


def main() -> NoReturn:
    control, launcher, namespaces, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    enter(list(filter(None, namespaces.split(":"))))
    report = supervise(control, launcher)
    try:
        # Python ignores these two, and the command would inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(report, f"{command[0]} can't be started: {error}".encode())
    os._exit(COULD_NOT_START)


if __name__ == "__main__":
    main()
