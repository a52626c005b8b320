"""A training process's part in a cluster: who it is, who else is there, and what a loss means."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import tensorflow as tf

from labkit.config import Config
from labkit.distributed.asynchronous import WorkerStuck
from labkit.distributed.bind_address import listen_on
from labkit.distributed.devices import Devices
from labkit.distributed.gather import everywhere
from labkit.distributed.heartbeat import Heartbeat, process_space, read_heartbeats
from labkit.distributed.peers import PeerLost, Peers, exit_after_loss
from labkit.distributed.signals import StopRequest
from labkit.distributed.strategies import make_multi_worker_strategy, make_parameter_server_strategy
from labkit.distributed.task import ClusterTask, split_address
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory, process_alive

__all__ = ["Membership"]

SECONDS_TO_HEAR = 5.0  # after the silence that makes a loss: until it is written down and read
SECONDS_TO_CONNECT = 10.0  # to a server of another host
SECONDS_TO_END = 10.0  # more than it takes the thread that noticed a loss to end the process
LOOK_SECONDS = 0.05
BROKEN_CONNECTION = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
# What a step raises when another task is gone, but also when something is wrong with the step itself.
BROKEN_STEP = (
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    tf.errors.UnknownError,
)


class Membership:
    """The place of a process that trains, or that coordinates those that do.

    Args:
        task: a worker of a synchronous cluster, or the coordinator of one with parameter servers.
        config: what is trained, time limits and the address to listen on.
        run: the run directory, which all tasks share.
        agreement: what this process trains, in a few words: workers in step must have the same.
    """

    def __init__(self, task: ClusterTask, config: Config, run: RunDirectory, agreement: str) -> None:
        self.task, self._config, self._agreement = task, config.distribution, agreement
        self.asynchronous = task.asynchronous_by_default
        self.folder = run.cluster_path
        self._own_failure: BaseException | None = None
        self._in_step = False
        self._space = process_space()
        self._earlier = {beat.incarnation for beat in self._gone(read_heartbeats(self.folder))}
        others = {name: address for name, address in task.addresses().items() if name != task.name}
        self._peers = Peers(
            self.folder, task.name, task.address, others, timeout=self._config.peer_timeout_seconds
        )

    def join(self, devices: Devices, stop: StopRequest) -> tf.distribute.Strategy | None:
        """Wait for all other tasks, start this one's server and return the strategy over all of them.

        Returns None where a stop was asked for meanwhile. Raises PeerLost that names who didn't appear.
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
        # From here on this process waits for others inside of TensorFlow: only another thread can end it.
        self.watch(lambda message: None)
        with self._time_limit():
            if self.asynchronous:
                self._check_reach()
                strategy = make_parameter_server_strategy(self.task)
            else:
                strategy = make_multi_worker_strategy(self.task, devices)
                everywhere(strategy, 0)
        self._in_step = not self.asynchronous
        return strategy

    def _check_agreement(self) -> None:
        """Raise InputError where another worker trains something else, or on other devices.

        Before the first collective: with different numbers of replicas that would wait for ever.
        """
        if self.asynchronous:
            return
        for beat in self._peers.heartbeats().values():
            if beat.phase != "lost" and beat.message != self._agreement:
                raise InputError(
                    f"{beat.name} and {self.task.name} differ: {beat.message} there, {self._agreement} here; "
                    "all tasks need the same flags, the same prepared data set and as many devices each"
                )

    def _remove_strangers(self) -> None:
        """Remove what tasks of an earlier, larger cluster left in the folder."""
        names = {name.replace(":", "-") for name in self.task.addresses()}
        for path in [*self.folder.glob("*.json"), *self.folder.glob("*.jsonl")]:
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def _check_reach(self) -> None:
        """Raise PeerLost where a server doesn't answer at its address, although its task is there."""
        for name, address in self.task.addresses("worker", "ps").items():
            try:
                socket.create_connection(split_address(address), SECONDS_TO_CONNECT).close()
            except OSError as error:
                raise PeerLost(
                    f"{name} is there, but can't be reached at {address} ({error}); does it listen there "
                    "(--bind), does a firewall stand between?"
                ) from None

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """End this process where the tasks, though all are there, can't make a first step together."""
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

        Raises PeerLost where one of them came and ended on this host: in step, nobody starts it alone. With
        parameter servers a task is replaced; on another host nothing but the time limit tells.
        """
        for beat in () if self.asynchronous else self._gone(self._peers.heartbeats()):
            if beat.incarnation not in self._earlier:
                raise PeerLost(
                    f"{beat.name} ({beat.address}, pid {beat.pid} on {beat.host}) has ended before the first "
                    "step: its process is gone"
                )
        return bool(stop)

    def _gone(self, beats: Mapping[str, Heartbeat]) -> list[Heartbeat]:
        """Return the beats of tasks of this host whose processes are gone."""
        here = [beat for beat in beats.values() if beat.process_space == self._space]
        return [beat for beat in here if not process_alive(beat.pid)]

    def watch(self, on_loss) -> None:
        """From now on end this process when a task is lost that it can't do without.

        Args:
            on_loss: called with the message before that, from another thread.
        """

        def leave(message: str) -> None:
            try:
                on_loss(message)
            finally:
                exit_after_loss(message)

        needed = self.task.addresses("ps") if self.asynchronous else None
        self._peers.watch(leave, of=needed)

    def explain(self, error: BaseException) -> str | None:
        """Return what was lost where ``error`` comes from a loss, or what of the cluster broke; else None."""
        if isinstance(error, PeerLost | WorkerStuck):
            return str(error)
        if not isinstance(error, BROKEN_CONNECTION + BROKEN_STEP) or error is self._own_failure:
            return None
        # A connection breaks at once; that its other end is gone for good shows a little later.
        lost = self._peers.lost(self._config.peer_timeout_seconds + SECONDS_TO_HEAR)
        if lost is not None:
            time.sleep(SECONDS_TO_END)  # the thread that watches says so, and ends this process
        elif isinstance(error, BROKEN_STEP):
            self._own_failure = error  # all are there: this would happen again after a restart
            return None
        return lost or f"the cluster broke: {type(error).__name__}: {_reason(error)}"

    def silent_workers(self) -> list[str]:
        """Return the workers that have given no sign of life for long."""
        return [name for name in self._peers.silent() if name.startswith("worker:")]

    def a_server_stops(self) -> bool:
        """Return whether a parameter server was asked to stop, which ends asynchronous training."""
        return self.asynchronous and any(
            name.startswith("ps:") and beat.phase == "stopping"
            for name, beat in self._peers.heartbeats().items()
        )

    def tell(self, step: int, examples_per_second: float | None) -> None:
        """Say in the next sign of life where this task is."""
        self._peers.tell(phase="training", step=step, examples_per_second=examples_per_second)

    def leave(self) -> None:
        """Say goodbye, once all that trained in step are done.

        The last reduction ends here while another worker still fetches its part of it from this process.
        """
        if self._in_step:
            chief = "chief:0" if self.task.count("chief") else "worker:0"
            # What this task had to do is done; only the chief, which may be saving still, must not be lost.
            self._peers.watch(exit_after_loss, of={chief} - {self.task.name})
            self._peers.tell(phase="done")
            while self._still_busy():
                time.sleep(LOOK_SECONDS)
        self._peers.leave()

    def _still_busy(self) -> bool:
        """Return whether another task lives and isn't done."""
        beats = self._peers.heartbeats()
        ended = {beat.name for beat in self._gone(beats)}.union(self._peers.silent())
        return any(
            beat.phase not in ("done", "left", "lost") for name, beat in beats.items() if name not in ended
        )


def _reason(error: BaseException) -> str:
    """Return the line of TensorFlow's message that says what happened: the last, before the node's name."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("[[")), "")[:300]
