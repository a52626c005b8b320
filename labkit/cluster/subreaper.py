"""The process between the launcher of a local cluster and one task: it leaves nothing behind.

Run as a script: ``python -I -S keeper.py CONTROL LAUNCHER COMMAND…``. It starts the command in a session of
its own and ends as the command ends: with its exit code, or by its signal.

CONTROL is the read end of a pipe whose write end the launcher alone holds: ``T`` in it asks the command to
end (SIGTERM to its process group), ``K`` kills. The end of the pipe is the launcher's death, whatever
caused it, and kills too. LAUNCHER is the launcher's process id, for a pipe that another process inherited.

What the command started itself goes with it. On Linux this process is a subreaper (prctl), so that the
helpers of a task, in whatever session or group, become its children when the task ends, and it kills until
it has none; should this process itself be killed, the command gets SIGKILL from the kernel
(PR_SET_PDEATHSIG). On other systems helpers go with the command's process group.

No import from labkit, and little else: a cluster waits for this to start.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
COULD_NOT_START = 127  # what shells give
LAST_LOOKS = 10.0  # seconds of killing after which what still lives is beyond a signal's reach


def load_prctl() -> Callable[..., int] | None:
    """Return the C function ``prctl``, or None on systems that have none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


def start(command: list[str], prctl: Callable[..., int] | None) -> int | None:
    """Start the command in a session of its own; return its process id, or None where it can't be run."""
    keeper = os.getpid()
    status, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if prctl is not None:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != keeper:  # it died before the line above
                    os._exit(128 + signal.SIGKILL)
            for number in (
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):  # Python ignores them, and that would be inherited
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            os.execvp(command[0], command)
        except BaseException as error:
            os.write(report, str(error).encode())
        os._exit(COULD_NOT_START)
    os.close(report)
    trouble = os.read(status, 1000)  # ends when the command runs: then its session is there to be signalled
    os.close(status)
    if not trouble:
        return child
    os.waitpid(child, 0)
    print(f"labkit: error: {command[0]} can't be started: {trouble.decode()}", file=sys.stderr, flush=True)
    return None


def children() -> list[int]:
    """Return the process ids of this process's children; without /proc, none."""
    found, me = [], str(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                if file.read().rpartition(")")[2].split()[1] == me:
                    found.append(int(entry))
    return found


def kill_group(task: int, number: int) -> None:
    """Send a signal to the command's process group, where there still is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: only zombies (macOS)
        os.killpg(task, number)


def reap(task: int) -> tuple[int | None, bool]:
    """Collect the dead; return the command's wait status, if it is there, and whether children are left."""
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
    """Kill the command and all that it started; return the command's wait status if this collected it."""
    result, left, end = int(signal.SIGKILL), True, time.monotonic() + LAST_LOOKS
    kill_group(task, signal.SIGKILL)
    while left and time.monotonic() < end:
        for pid in children():  # what a dead child leaves shows up here in the next round
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
        # Only signals for this process itself are passed on; a dead child wakes it, too.
        signals = os.read(wake, 100) if wake in ready else b""
        if b"T" in told or any(number != signal.SIGCHLD for number in signals):
            kill_group(task, signal.SIGTERM)


def end_like(status: int) -> NoReturn:
    """End as the command did, given its wait status."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped its own
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # for a signal that doesn't end a process by itself


def main() -> NoReturn:
    control, launcher, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(control, False)
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # What is ignored (SIGHUP under nohup) stays so for the command; but SIGCHLD is needed.
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    prctl = load_prctl()
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    task = start(command, prctl)
    if task is None:
        os._exit(COULD_NOT_START)
    end_like(watch(task, control, launcher, wake))


if __name__ == "__main__":
    main()
