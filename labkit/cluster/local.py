"""A cluster on this machine in one command: started, watched, restarted where that helps, and reaped.

Nothing outlives the launcher, whatever ends it. Each task has a keeper (``keeper.py``) that holds the end of
a pipe from the launcher and kills the task with all that it started when the pipe closes. On Linux the
keeper also is a subreaper, so that helpers can't escape, and PR_SET_PDEATHSIG ends the task with its keeper.
Elsewhere (macOS) helpers go with the process group of their task.
"""

import itertools
import math
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.supervisor import Ending, Supervisor, stop_signals
from labkit.distributed.heartbeat import read_beats
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = ["LocalCluster", "Patience", "own_host", "run_local_cluster"]

LATE = "did not end in time"


@dataclass(frozen=True)
class LocalCluster:
    """What runs: synchronous workers, or with parameter servers a chief that directs asynchronous workers.

    Raises InputError for a cluster that can't be.
    """

    workers: int
    ps: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"--workers is {self.workers}; allowed: 1 or more")
        if self.ps < 0:
            raise InputError(f"--ps is {self.ps}; allowed: 0 (synchronous) or more (asynchronous)")

    @property
    def asynchronous(self) -> bool:
        return self.ps > 0

    @property
    def label(self) -> str:
        """Return a short form for names of runs, such as ``2workers-1ps``."""
        return f"{self.workers}workers" + (f"-{self.ps}ps" if self.ps else "")

    @property
    def chief(self) -> str:
        """Return the task that writes the run."""
        return "chief:0" if self.asynchronous else "worker:0"

    def tasks(self, host: str) -> dict[str, ClusterTask]:
        """Return the tasks by name, with free ports of ``host``. Raises InputError where it has none."""
        counts = {"chief": int(self.asynchronous), "worker": self.workers, "ps": self.ps}
        shown = f"[{host}]" if ":" in host else host
        addresses = iter([f"{shown}:{port}" for port in free_ports(host, sum(counts.values()))])
        jobs = {job: tuple(itertools.islice(addresses, count)) for job, count in counts.items() if count}
        tasks = [ClusterTask(jobs, job, index) for job in jobs for index in range(counts[job])]
        return {task.name: task for task in tasks}


def own_host(bind: str) -> str:
    """Return where servers that listen on ``bind`` are reached from this machine."""
    return "127.0.0.1" if bind in ("0.0.0.0", "::") else bind


@dataclass(frozen=True)
class Patience:
    """Seconds that the launcher waits before it kills."""

    leave: float = 30.0  # for the others, after one is lost: they should notice and end by themselves
    stop: float = 60.0  # for a checkpoint and a clean end, after a request to stop
    servers: float = 10.0  # for servers, which have nothing to save, after the chief's end
    replace: float = 2.0  # before a worker that left by itself is replaced: the chief may be ending, too


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on. Raises InputError for a host that isn't this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as held:  # all at once, or one port could be given twice
        sockets = [held.enter_context(socket.socket(family, socket.SOCK_STREAM)) for _ in range(count)]
        try:
            for each in sockets:
                each.bind((host, 0))
        except (OSError, UnicodeError) as error:  # the second for a name that can't be a host's
            raise InputError(
                f"no port of {host!r} can be used ({error}); allowed: an address of this machine"
            ) from None
        return [each.getsockname()[1] for each in sockets]


def run_local_cluster(
    command: Sequence[str],
    *,
    workers: int,
    ps: int = 0,
    folder: Path,
    max_restarts: int = 3,
    host: str = "127.0.0.1",
    environment: Callable[[ClusterTask], Mapping[str, str]] = lambda task: {},
    output: Callable[[str], None] = print,
    stall_timeout: float = 15.0,
    patience: Patience | None = None,
) -> int:
    """Run ``command`` once for each task of a cluster on this machine, until the run is over.

    Every task has TF_CONFIG in its environment. Without ``ps`` the cluster is synchronous: when a task is
    lost all end and start again, from the last checkpoint. With ``ps`` a lost worker is replaced on its own
    address while training goes on; a lost chief or parameter server restarts all. A restart of all takes
    new ports, so one that was stolen meanwhile costs one restart.

    SIGINT, SIGTERM and SIGHUP become SIGTERM for the tasks, which save and end; a second one kills them.

    Args:
        command: for all tasks the same, such as ``[sys.executable, "-m", "labkit", "train", …]``.
        workers: number of tasks that train.
        ps: number of parameter servers.
        folder: ``cluster/`` in the run directory, where the tasks give signs of life (``distributed.peers``).
        max_restarts: of the whole cluster, and of each asynchronous worker.
        host: an address of this machine; the default keeps the cluster to itself.
        environment: for a task, additions to this process's environment.
        output: takes each line of the tasks (``[worker:1] …``) and of the launcher (``[cluster] …``).
        stall_timeout: seconds without a sign of life after which a task is killed and counts as dead. It is
            no limit for a task that never gave one.
        patience: how long to wait where tasks should end by themselves.

    Returns the exit code: 0 where the run is finished, that of the task that failed, 75 where the restarts
    are used up, 128 + the signal that asked to stop.

    Raises InputError for a cluster, a command or a host that can't be.
    """
    cluster = LocalCluster(workers, ps)
    if max_restarts < 0:
        raise InputError(f"--max-restarts is {max_restarts}; allowed: 0 or more")
    if not command or shutil.which(command[0]) is None:
        raise InputError(
            f"the command {' '.join(command)!r} can't be run; give one, such as: -- train --sync"
        )
    supervisor = Supervisor(command, environment, folder, output, stall_timeout)
    with stop_signals() as signals:
        try:
            return _Run(
                cluster, supervisor, folder, host, max_restarts, patience or Patience(), signals
            ).run()
        finally:
            supervisor.close()


class _Run:
    """A cluster from its first start to its last end."""

    def __init__(
        self,
        cluster: LocalCluster,
        supervisor: Supervisor,
        folder: Path,
        host: str,
        max_restarts: int,
        patience: Patience,
        signals: list[int],
    ) -> None:
        self._cluster, self._supervisor, self._folder, self._host = cluster, supervisor, folder, host
        self._max_restarts, self._patience, self._signals = max_restarts, patience, signals
        self._replaced: dict[str, int] = {}
        self._given_up = False
        self._obeyed = 0  # how many of the signals have been acted on

    def run(self) -> int:
        restarts = 0
        while True:
            endings = self._session()
            code = self._verdict(endings)
            if code is not None:
                return code
            cause = self._described(_cause(endings))
            if self._given_up or restarts == self._max_restarts:
                self._supervisor.say(f"{cause}; none of {counted(self._max_restarts, 'restart')} is left")
                return EXIT_LOST_PEER
            restarts += 1
            self._supervisor.say(f"{cause}; restart {restarts} of {self._max_restarts}")

    def _session(self) -> list[Ending]:
        """Run all tasks until none is left; return how those ended that count."""
        self._endings: list[Ending] = []
        self._deadline = math.inf
        self._closing = False
        self._dismissed: frozenset[str] = frozenset()  # however they end, it no longer counts
        self._due: dict[str, tuple[float, Ending]] = {}  # workers to replace: when, and why
        self._tasks = self._cluster.tasks(self._host)
        for task in self._tasks.values():
            self._supervisor.start(task)
        while self._supervisor.running:
            for ending in self._supervisor.poll(0.1):
                self._take(ending)
            self._obey()
            self._replace()
            if time.monotonic() > self._deadline:
                self._supervisor.kill(self._supervisor.running, LATE)
                self._deadline = math.inf
        return self._endings

    def _take(self, ending: Ending) -> None:
        if ending.name in self._dismissed:
            # Others can notice a death before its process is gone; it remains the cause.
            if ending.code < 0 and ending.code != -signal.SIGTERM and ending.killed_because != LATE:
                self._endings.append(ending)
            return
        server = self._cluster.asynchronous and ending.name != self._cluster.chief
        if server and ending.name.startswith("worker") and not ending.failed and not self._closing:
            self._schedule(ending)
            return
        self._endings.append(ending)
        if ending.failed:
            self._end_the_rest()
        elif self._cluster.asynchronous and not server:
            self._dismiss(self._patience.servers)
        elif ending.stopped and not server:
            self._wait(self._patience.stop)
        elif ending.dead or server or ending.name == self._cluster.chief:
            self._wait(self._patience.leave)
        self._announce(ending)

    def _announce(self, ending: Ending) -> None:
        if (ending.dead or ending.failed) and self._supervisor.running and not self._signals:
            seconds = max(0.0, self._deadline - time.monotonic())
            self._supervisor.say(f"{self._described(ending)}; the others have {seconds:.0f} s to end")

    def _described(self, ending: Ending) -> str:
        """Return how a task ended; where it gave up because of another, in its own words."""
        if ending.code == EXIT_LOST_PEER and not ending.killed_because:
            beat = read_beats(self._folder).get(ending.name)
            if beat is not None and beat.phase == "lost" and beat.message:
                return f"{ending}: {beat.message}"
        return str(ending)

    def _wait(self, seconds: float) -> None:
        """Let the others end by themselves, but not for ever."""
        if not self._closing:
            self._closing, self._deadline = True, time.monotonic() + seconds

    def _end_the_rest(self) -> None:
        """End a cluster that can't go on; a chief of servers first, because it saves what they hold."""
        chief = self._cluster.chief
        if not self._cluster.asynchronous or chief not in self._supervisor.running:
            self._dismiss(self._patience.leave)
            return
        self._closing, self._dismissed = True, self._supervisor.running - {chief}
        self._deadline = time.monotonic() + self._patience.stop
        self._supervisor.terminate([chief])

    def _dismiss(self, seconds: float) -> None:
        """End whatever still runs."""
        self._closing, self._dismissed = True, self._supervisor.running
        self._deadline = time.monotonic() + seconds
        self._supervisor.terminate(self._dismissed)

    def _obey(self) -> None:
        """Act on signals: the first asks the tasks to end, the second kills."""
        if len(self._signals) == self._obeyed:
            return
        self._obeyed += 1
        if self._obeyed > 1:
            self._supervisor.say("asked a second time; what still runs is killed")
            self._supervisor.kill(self._supervisor.running, "did not end before the second request")
            return
        chief = self._cluster.chief
        first = {chief} if self._cluster.asynchronous and chief in self._supervisor.running else self._tasks
        self._closing, self._deadline = True, time.monotonic() + self._patience.stop
        self._supervisor.say(f"asked to stop; the tasks have {self._patience.stop:.0f} s to save and end")
        self._supervisor.terminate(first)

    def _schedule(self, ending: Ending) -> None:
        """Plan the replacement of an asynchronous worker, or give up."""
        used = self._replaced.get(ending.name, 0)
        if used == self._max_restarts:
            self._endings.append(ending)
            self._given_up = True
            self._end_the_rest()
            return
        self._replaced[ending.name] = used + 1
        by_itself = ending.code >= 0
        self._due[ending.name] = (time.monotonic() + self._patience.replace * by_itself, ending)

    def _replace(self) -> None:
        for name, (when, ending) in list(self._due.items()):
            if self._closing:
                del self._due[name]
            elif time.monotonic() >= when:
                del self._due[name]
                restart = f"restart {self._replaced[name]} of {self._max_restarts}"
                self._supervisor.say(
                    f"{self._described(ending)}; it starts again while training goes on, {restart}"
                )
                self._supervisor.start(self._tasks[name])

    def _verdict(self, endings: list[Ending]) -> int | None:
        """Return the run's exit code, or None where all should start again."""
        failed = next((ending.code for ending in endings if ending.failed), None)
        if failed is not None:
            return failed
        chief = next((ending for ending in endings if ending.name == self._cluster.chief), None)
        if chief is not None and chief.code == 0:
            for ending in endings:
                if ending.dead and not self._cluster.asynchronous:
                    self._supervisor.say(f"{ending}, when the run was already finished")
            return 0
        if self._signals:
            return 128 + self._signals[0]
        if self._given_up:
            return None
        # Somebody else asked a task to stop, and all did: that is no reason to start again.
        asked = [chief] if self._cluster.asynchronous else [chief, *endings]
        return next((ending.code for ending in asked if ending is not None and ending.stopped), None)


def _cause(endings: list[Ending]) -> Ending:
    """Return the ending that explains the others: whoever was killed, before those who noticed."""

    def order(ending: Ending) -> tuple[bool, bool, bool]:
        return (ending.killed_because == LATE, not ending.dead, ending.code == EXIT_LOST_PEER)

    return min(endings, key=order)
