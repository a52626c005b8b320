"""Run a cluster on this machine: start the tasks, watch them, restart them after a loss, clean up.

No process outlives the launcher, however it ends. Each task has a parent process (``subreaper.py``) that
holds the reading end of a pipe from the launcher. When the pipe closes, it kills the task and everything
that the task started.
"""

import math
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.hosts import Hosts, PrivateNetwork
from labkit.cluster.local import LocalCluster
from labkit.cluster.supervisor import Supervisor, TaskExit
from labkit.distributed.heartbeat import read_heartbeats
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.startup.interruption import stop_signals
from labkit.startup.process import POLL_SECONDS
from labkit.startup.template import Template

LATE = "did not end in time"


@dataclass(frozen=True)
class Patience:
    """Seconds that the launcher waits before it kills."""

    leave: float = 30.0  # for the other tasks after a loss: they should notice it and end by themselves
    stop: float = 60.0  # for a checkpoint and a clean end after a request to stop
    servers: float = 10.0  # for servers, which have nothing to save, after the chief's end
    replace: float = 2.0  # before a worker that ended by itself is replaced: the chief may be ending, too


def run_local_cluster(
    command: Sequence[str],
    *,
    workers: int,
    ps: int = 0,
    folder: Path,
    max_restarts: int = 3,
    host: str = "127.0.0.1",
    hosts: PrivateNetwork | None = None,
    arguments: Callable[[ClusterTask], Sequence[str]] = lambda task: (),
    environment: Callable[[ClusterTask], Mapping[str, str]] = lambda task: {},
    output: Callable[[str], None] = print,
    stall_timeout: float = 15.0,
    patience: Patience | None = None,
    template: Template | None = None,
) -> int:
    """Run ``command`` once for each task of a cluster on this machine, until the run is finished.

    Every task gets TF_CONFIG in its environment. Without ``ps`` the cluster is synchronous: when a task is
    lost, all end and start again from the last checkpoint. With ``ps`` a lost worker is replaced at its own
    address while training continues; the loss of the chief or a parameter server restarts all tasks. A
    restart of all tasks takes new ports, in case another process has taken one meanwhile.

    SIGTERM and SIGHUP become SIGTERM for the tasks, SIGINT stays: they save and end; a second one kills them.

    Args:
        command: the same for all tasks, such as ``[sys.executable, "-m", "labkit", "train", …]``.
        workers: number of tasks that train.
        ps: number of parameter servers.
        folder: ``cluster/`` in the run directory, where the tasks write their heartbeats.
        max_restarts: of the whole cluster, and of each asynchronous worker.
        host: an address of this machine. The default admits no other machine.
        hosts: one for each task, in place of ``host``; or a network of their own.
        arguments: for a task, additions to the command.
        environment: for a task, additions to this process's environment.
        output: takes each line of the tasks (``[worker:1] …``) and of the launcher (``[cluster] …``).
        stall_timeout: seconds without a heartbeat after which a task is killed and counts as lost. Tasks
            that never wrote one have no limit.
        patience: how long to wait for tasks to end by themselves.
        template: from which ``labkit train`` is forked; None: each task is a new program.

    Returns the exit code: 0 for a finished run, that of the task that failed, 75 after too many restarts,
    128 + the signal that asked to stop.

    Raises InputError for an impossible cluster, a command that does not exist, or another machine's host.
    """
    cluster = LocalCluster(workers, ps)
    if max_restarts < 0:
        raise InputError(f"--max-restarts is {max_restarts}; allowed: 0 or more")
    if not command or shutil.which(command[0]) is None:
        raise InputError(
            f"the command {' '.join(command)!r} can't be run; give one, such as: -- train --sync"
        )
    supervisor = Supervisor(command, arguments, environment, hosts, folder, output, stall_timeout, template)

    def tasks() -> dict[str, ClusterTask]:
        if not isinstance(hosts, Hosts):
            return cluster.tasks(host)
        port = hosts.next_port()
        return cluster.tasks_at(f"{address}:{port}" for address in hosts.addresses.values())

    with stop_signals() as signals:
        try:
            while template and not template.ready() and not signals:
                time.sleep(POLL_SECONDS)
            return _Run(
                cluster, supervisor, folder, tasks, max_restarts, patience or Patience(), signals
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
        tasks: Callable[[], dict[str, ClusterTask]],
        max_restarts: int,
        patience: Patience,
        signals: list[int],
    ) -> None:
        self._cluster, self._supervisor, self._folder, self._new_tasks = cluster, supervisor, folder, tasks
        self._max_restarts, self._patience, self._signals = max_restarts, patience, signals
        self._replaced: dict[str, int] = {}
        self._given_up = False
        self._signals_handled = 0

    def run(self) -> int:
        restarts = 0
        while True:
            exits = self._session()
            code = self._exit_code(exits)
            if code is not None:
                return code
            cause = self._described(_cause(exits))
            if self._given_up or restarts == self._max_restarts:
                self._supervisor.say(f"{cause}; gave up, --max-restarts is {self._max_restarts}")
                return EXIT_LOST_PEER
            restarts += 1
            self._supervisor.say(f"{cause}; restart {restarts} of {self._max_restarts}")

    def _session(self) -> list[TaskExit]:
        """Run all tasks until none is left; return the exits that decide what happens next."""
        self._exits: list[TaskExit] = []
        self._deadline = math.inf
        self._closing = False
        self._dismissed: frozenset[str] = frozenset()  # tasks that were asked to end: their code is ignored
        self._replacements: dict[str, tuple[float, TaskExit]] = {}  # by worker: when, and why
        self._tasks = self._new_tasks()
        for task in self._tasks.values():
            self._supervisor.start(task)
        while self._supervisor.running:
            for ended in self._supervisor.poll(0.1):
                self._handle_exit(ended)
            self._handle_signals()
            self._replace_workers()
            if time.monotonic() > self._deadline:
                self._supervisor.kill(self._supervisor.running, LATE)
                self._deadline = math.inf
        return self._exits

    def _handle_exit(self, ended: TaskExit) -> None:
        if ended.name in self._dismissed:
            # A task killed by a signal remains the cause, even if the others noticed it first.
            if ended.code < 0 and ended.code != -signal.SIGTERM and ended.killed_because != LATE:
                self._exits.append(ended)
            return
        server = self._cluster.asynchronous and ended.name != self._cluster.chief
        if server and ended.name.startswith("worker") and not ended.failed and not self._closing:
            self._schedule_replacement(ended)
            return
        self._exits.append(ended)
        if ended.failed:
            self._end_the_rest()
        elif self._cluster.asynchronous and not server:
            self._dismiss(self._patience.servers)
        elif ended.stopped and not server:
            self._wait(self._patience.stop)
        elif ended.lost or server or ended.name == self._cluster.chief:
            self._wait(self._patience.leave)
        self._announce(ended)

    def _announce(self, ended: TaskExit) -> None:
        if (ended.lost or ended.failed) and self._supervisor.running and not self._signals:
            seconds = max(0.0, self._deadline - time.monotonic())
            self._supervisor.say(f"{self._described(ended)}; the others have {seconds:.0f} s to end")

    def _described(self, ended: TaskExit) -> str:
        """Return how a task ended; for one that lost a peer, with the message of its last heartbeat."""
        if ended.code == EXIT_LOST_PEER and not ended.killed_because:
            heartbeat = read_heartbeats(self._folder).get(ended.name)
            if heartbeat is not None and heartbeat.phase == "lost" and heartbeat.message:
                return f"{ended}: {heartbeat.message}"
        return str(ended)

    def _wait(self, seconds: float) -> None:
        """Let the others end by themselves within ``seconds``."""
        if not self._closing:
            self._closing, self._deadline = True, time.monotonic() + seconds

    def _end_the_rest(self) -> None:
        """End a cluster that can't continue; with servers the chief first, to save their variables."""
        chief = self._cluster.chief
        if not self._cluster.asynchronous or chief not in self._supervisor.running:
            self._dismiss(self._patience.leave)
            return
        self._closing, self._dismissed = True, self._supervisor.running - {chief}
        self._deadline = time.monotonic() + self._patience.stop
        self._supervisor.terminate([chief])

    def _dismiss(self, seconds: float) -> None:
        """Ask all running tasks to end within ``seconds``."""
        self._closing, self._dismissed = True, self._supervisor.running
        self._deadline = time.monotonic() + seconds
        self._supervisor.terminate(self._dismissed)

    def _handle_signals(self) -> None:
        """Act on signals: the first asks the tasks to end, the second kills them."""
        if len(self._signals) == self._signals_handled:
            return
        self._signals_handled += 1
        if self._signals_handled > 1:
            self._supervisor.say("asked to stop a second time; killing all tasks")
            self._supervisor.kill(self._supervisor.running, "did not end before the second request")
            return
        chief = self._cluster.chief
        first = {chief} if self._cluster.asynchronous and chief in self._supervisor.running else self._tasks
        self._closing, self._deadline = True, time.monotonic() + self._patience.stop
        self._supervisor.say(f"asked to stop; the tasks have {self._patience.stop:.0f} s to save and end")
        self._supervisor.terminate(first, self._signals[0])

    def _schedule_replacement(self, ended: TaskExit) -> None:
        """Plan the replacement of an asynchronous worker, or give up."""
        used = self._replaced.get(ended.name, 0)
        if used == self._max_restarts:
            self._exits.append(ended)
            self._given_up = True
            self._end_the_rest()
            return
        self._replaced[ended.name] = used + 1
        by_itself = ended.code >= 0
        self._replacements[ended.name] = (time.monotonic() + self._patience.replace * by_itself, ended)

    def _replace_workers(self) -> None:
        for name, (when, ended) in list(self._replacements.items()):
            if self._closing:
                del self._replacements[name]
            elif time.monotonic() >= when:
                del self._replacements[name]
                restart = f"restart {self._replaced[name]} of {self._max_restarts}"
                self._supervisor.say(
                    f"{self._described(ended)}; started again while training continues, {restart}"
                )
                self._supervisor.start(self._tasks[name])

    def _exit_code(self, exits: list[TaskExit]) -> int | None:
        """Return the run's exit code, or None if all tasks should start again."""
        failed = next((ended.code for ended in exits if ended.failed), None)
        if failed is not None:
            return failed
        chief = next((ended for ended in exits if ended.name == self._cluster.chief), None)
        if chief is not None and chief.code == 0:
            for ended in exits:
                if ended.lost and not self._cluster.asynchronous:
                    self._supervisor.say(f"{ended}, after the run was finished")
            return 0
        if self._signals:
            return 128 + self._signals[0]
        if self._given_up:
            return None
        # A task was asked to stop by somebody else, and all stopped: that is no reason to start again.
        asked = [chief] if self._cluster.asynchronous else [chief, *exits]
        return next((ended.code for ended in asked if ended is not None and ended.stopped), None)


def _cause(exits: list[TaskExit]) -> TaskExit:
    """Return the exit that explains the others: tasks that were killed come before those that noticed it."""
    return min(exits, key=lambda end: (end.killed_because == LATE, not end.lost, end.code == EXIT_LOST_PEER))
