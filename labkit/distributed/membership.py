"""A training process's membership of a cluster: joining, watching the other tasks, leaving."""

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import tensorflow as tf

from labkit.config import Config
from labkit.distributed.asynchronous import WorkerStuck
from labkit.distributed.bind_address import listen_on
from labkit.distributed.devices import Devices
from labkit.distributed.heartbeat import (
    BETWEEN_STEPS,
    Attempt,
    Attempts,
    Heartbeat,
    Progress,
    connection_error,
    process_space,
    read_heartbeats,
    unreachable,
)
from labkit.distributed.peers import PeerLost, Peers, exit_after_loss
from labkit.distributed.synchronous import (
    everywhere,
    make_multi_worker_strategy,
    make_parameter_server_strategy,
)
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, process_alive
from labkit.startup.interruption import StopRequest
from labkit.startup.quiet_import import import_tensorflow

SECONDS_TO_HEAR = 5.0  # after the peer timeout: for the loss to be recorded and read
SECONDS_TO_CONNECT = 10.0  # to a server on another host
SECONDS_TO_END = 10.0  # longer than the watching thread needs to end the process after a loss
LOOK_SECONDS = 0.05
BROKEN_CONNECTION = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
# A step raises these when another task is lost, but also when the step itself is wrong.
BROKEN_STEP = (
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    tf.errors.UnknownError,
)


class Membership:
    """The membership of a worker or a coordinator in its cluster.

    Args:
        task: a worker of a synchronous cluster, or the coordinator of one with parameter servers.
        config: what is trained, time limits and the address to listen on.
        run: the run directory, which all tasks share.
        agreement: a short description of what this process trains. Synchronous workers must all have the
            same one.
    """

    def __init__(self, task: ClusterTask, config: Config, run: RunDirectory, agreement: str) -> None:
        self.task, self._config, self._agreement = task, config.distribution, agreement
        self.asynchronous = task.asynchronous_by_default
        self.folder = run.cluster_path
        self._own_failure: BaseException | None = None
        self._is_connected = False
        self._space = process_space()
        self._earlier = {heartbeat.incarnation for heartbeat in self._gone(read_heartbeats(self.folder))}
        others = {name: address for name, address in task.addresses().items() if name != task.name}
        self._progress = Progress(task.name, task.addresses(), self._config.progress_timeout_seconds)
        self._peers = Peers(
            self.folder,
            task.name,
            task.address,
            others,
            timeout=self._config.peer_timeout_seconds,
            judge=self._judge,
        )
        self.attempts = Attempts(self._peers.incarnation_of)  # of asynchronous steps
        self._dismissing: threading.Thread | None = None

    def join(self, devices: Devices, stop: StopRequest) -> tf.distribute.Strategy | None:
        """Wait for all other tasks, start this task's server and return the strategy over all tasks.

        Returns None if a stop was requested meanwhile. Raises PeerLost, with the missing tasks' names, if
        some don't appear.
        """
        import_tensorflow()
        listen_on(self._config.bind)
        self._peers.tell(message=self._agreement)
        self._peers.start()
        if not self._peers.rendezvous(self._config.rendezvous_seconds, lambda: self._is_over(stop)):
            return None
        self._check_agreement()
        if self.task.is_chief:
            self._remove_strangers()
        # From here on this process may block inside TensorFlow, so only another thread can end it.
        self.watch(lambda message: None)
        with self._time_limit():
            if self.asynchronous:
                self._check_reach()
                strategy = make_parameter_server_strategy(self.task)
            else:
                strategy = make_multi_worker_strategy(self.task, devices)
                everywhere(strategy, 0)
        self._is_connected = True
        return strategy

    def _check_agreement(self) -> None:
        """Raise InputError if another worker trains something else, or on different devices.

        This comes before the first collective, which would wait forever if the replica counts differed.
        """
        if self.asynchronous:
            return
        for heartbeat in self._peers.heartbeats().values():
            if heartbeat.phase != "lost" and heartbeat.message != self._agreement:
                raise InputError(
                    f"{heartbeat.name} and {self.task.name} differ: {heartbeat.message} there, "
                    f"{self._agreement} here; "
                    "all tasks need the same flags, the same prepared data set and as many devices each"
                )

    def _remove_strangers(self) -> None:
        """Remove what tasks of an earlier, larger cluster left in the folder."""
        names = {name.replace(":", "-") for name in self.task.addresses()}
        for pattern in ("*.json", "*.jsonl", "machine/*.jsonl", "spans/*.json"):
            for path in self.folder.glob(pattern):
                if path.stem not in names:
                    path.unlink(missing_ok=True)

    def _check_reach(self) -> None:
        """Raise PeerLost if a task sends heartbeats but its server can't be reached.

        A host that refuses is asked once. One that doesn't answer is asked again for half of the time limit:
        its link may be cut for a while.
        """
        patient_until = time.monotonic() + self._config.rendezvous_seconds / 2
        for name, address in self.task.addresses("worker", "ps").items():
            while (error := connection_error(address, SECONDS_TO_CONNECT)) is not None:
                if isinstance(error, ConnectionRefusedError) or time.monotonic() > patient_until:
                    raise PeerLost(
                        f"{name} is there, but can't be reached at {address} ({error}); does it listen there "
                        "(--bind), does a firewall stand between?"
                    )
                time.sleep(LOOK_SECONDS)

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """End this process if the tasks can't connect in time, although all of them are running."""
        seconds = self._config.rendezvous_seconds
        others = ", ".join(
            f"{name} ({address})" for name, address in self.task.addresses().items() if name != self.task.name
        )
        timer = threading.Timer(
            seconds,
            exit_after_loss,
            [
                f"no connection with {others} within {seconds:g} s, though all are there; do they listen at "
                "these addresses (--bind), does a firewall stand between?"
            ],
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _is_over(self, stop: StopRequest) -> bool:
        """Return whether this task was asked to stop while it waits for the others.

        Raises PeerLost if another task on this host has started and ended: a synchronous worker isn't
        restarted alone. With parameter servers, lost tasks are replaced. If a task on another host ends, only
        the time limit reveals it.
        """
        for heartbeat in () if self.asynchronous else self._gone(self._peers.heartbeats()):
            if heartbeat.incarnation not in self._earlier:
                raise PeerLost(
                    f"{heartbeat.name} ({heartbeat.address}, pid {heartbeat.pid} on {heartbeat.host}) "
                    "has ended before the first step: its process is gone"
                )
        return bool(stop)

    def _gone(self, heartbeats: Mapping[str, Heartbeat]) -> list[Heartbeat]:
        """Return the heartbeats of tasks on this host whose processes have ended."""
        here = [heartbeat for heartbeat in heartbeats.values() if heartbeat.process_space == self._space]
        return [heartbeat for heartbeat in here if not process_alive(heartbeat.pid)]

    def watch(self, on_loss) -> None:
        """From now on, end this process if a task that it needs is lost.

        Args:
            on_loss: called with the message, from another thread, before the process ends.
        """

        def leave(message: str) -> None:
            try:
                on_loss(message)
            finally:
                exit_after_loss(message)

        needed = self.task.addresses("ps") if self.asynchronous else None
        self._peers.watch(leave, of=needed)

    def explain(self, error: BaseException) -> str | None:
        """Return a message if ``error`` comes from a lost task or a broken connection, else None."""
        if isinstance(error, PeerLost | WorkerStuck):
            return str(error)
        if isinstance(error, InputError) and error.__cause__ is not None:
            error = error.__cause__  # a checkpoint can't be restored: is it damaged, or is a server lost?
        if not isinstance(error, BROKEN_CONNECTION + BROKEN_STEP) or error is self._own_failure:
            return None
        # The connection breaks immediately; the loss of the task is detected a little later.
        lost = self._peers.lost(self._config.peer_timeout_seconds + SECONDS_TO_HEAR)
        if lost is not None:
            time.sleep(SECONDS_TO_END)  # the watching thread reports the loss and ends this process
        elif isinstance(error, BROKEN_STEP):
            self._own_failure = error  # no task is lost: a restart would fail in the same way
            return None
        return lost or f"the cluster broke: {type(error).__name__}: {_reason(error)}"

    def silent_workers(self) -> list[str]:
        """Return the workers whose heartbeats have stopped."""
        return [name for name in self._peers.silent() if name.startswith("worker:")]

    def a_server_stops(self) -> bool:
        """Return whether a parameter server was asked to stop, which ends asynchronous training."""
        return self.asynchronous and any(
            name.startswith("ps:") and heartbeat.phase == "stopping"
            for name, heartbeat in self._peers.heartbeats().items()
        )

    def tell(self, step: int, examples_per_second: float | None, seconds: float) -> None:
        """Report in the next heartbeat that this task has finished a step, in ``seconds``."""
        self._peers.tell(
            phase="training", step=step, examples_per_second=examples_per_second, activity=BETWEEN_STEPS
        )
        self._progress.move(seconds)

    def begin(self, step: int | None = None) -> None:
        """Report that this task waits for the input of its next step; ``step``: that it now begins it."""
        self._peers.tell(activity="", begun=step)

    def busy(self, activity: str) -> None:
        """Report what this task does between two steps, such as ``saves``, and that it goes on with it."""
        self._peers.tell(activity=activity)
        self._progress.move()

    def _judge(self, elapsed: float, own: Heartbeat, peers: Mapping[str, Heartbeat]) -> str | None:
        """Return why no steps end any more, or None. The coordinator of asynchronous steps judges alone."""
        if not self._is_connected:
            return None
        if self.asynchronous:
            self._dismiss_hung_workers(elapsed)
            return self._progress.judge(elapsed, own, {}, self.task.addresses("worker", "ps"))
        return self._progress.judge(elapsed, own, peers, peers)

    def _dismiss_hung_workers(self, elapsed: float) -> None:
        """Tell asynchronous workers whose step does not end to end themselves, so that they are replaced."""
        overdue = self.attempts.overdue(elapsed, self._config.progress_timeout_seconds)
        silent = self._peers.silent()  # their launcher replaces them
        hung = [attempt for attempt in overdue if not attempt.dismissed and attempt.worker not in silent]
        if hung and not (self._dismissing and self._dismissing.is_alive()):
            # In a thread of its own: the caller writes the heartbeats, and connecting may take long.
            self._dismissing = threading.Thread(target=self._dismiss, args=[hung[0]], daemon=True)
            self._dismissing.start()

    def _dismiss(self, attempt: Attempt) -> None:
        """Dismiss a worker, unless it or a parameter server can't be reached.

        The connection of a worker that can't be reached would not break, and its step would go on hanging.
        While a server can't be reached, the worker may be waiting for it.
        """
        name, addresses = attempt.worker, self.task.addresses()
        cut = unreachable({each: addresses[each] for each in (name, *self.task.addresses("ps"))})
        text = f"{name} ({addresses[name]}) has made no progress for {attempt.watched:.0f} s"
        if not cut:
            attempt.dismissed = True
            self._peers.dismiss(name, attempt.incarnation)
            self._progress.move()  # its step goes to another worker, which takes a while
            print(f"labkit: {text}; it is told to end", file=sys.stderr, flush=True)
        elif not attempt.reported:
            attempt.reported = True
            print(f"labkit: {text}, and {self.task.name} can't reach {cut}", file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Leave the cluster; a synchronous worker first waits until all the others are done.

        After the last reduction has ended here, another worker may still fetch its result from this process.
        """
        if self._is_connected and not self.asynchronous:
            chief = "chief:0" if self.task.count("chief") else "worker:0"
            # This task's work is done. Only the loss of the chief still matters: it may be saving.
            self._peers.watch(exit_after_loss, of={chief} - {self.task.name})
            self._peers.tell(phase="done", activity="has finished")
            while self._still_busy():
                time.sleep(LOOK_SECONDS)
        self._peers.leave()

    def _still_busy(self) -> bool:
        """Return whether another task is running and isn't done."""
        heartbeats = self._peers.heartbeats()
        ended = {heartbeat.name for heartbeat in self._gone(heartbeats)}.union(self._peers.silent())
        return any(
            heartbeat.phase not in ("done", "left", "lost")
            for name, heartbeat in heartbeats.items()
            if name not in ended
        )


def _reason(error: BaseException) -> str:
    """Return the line of TensorFlow's message that names the cause: the last one before the node's name."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("[[")), "")[:300]
