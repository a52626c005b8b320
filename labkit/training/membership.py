"""A training process's part in a cluster: who it is, who else is there, and what a loss means."""

import tensorflow as tf

from labkit.config import Config
from labkit.notices import import_tensorflow
from labkit.peers import PeerLost, Peers, die_of_loss
from labkit.runs import RunDirectory
from labkit.training.asynchronous import WorkerStuck
from labkit.training.cluster_strategies import make_multi_worker_strategy, make_parameter_server_strategy
from labkit.training.devices import DevicePlan
from labkit.training.listening import listen_on
from labkit.training.signals import StopRequest
from labkit.training.topology import ClusterTask

__all__ = ["Membership"]

SECONDS_TO_HEAR = 5.0  # after the silence that makes a loss: until it is written down and read
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
        config: time limits and the address to listen on.
        run: the run directory, which all tasks share.
    """

    def __init__(self, task: ClusterTask, config: Config, run: RunDirectory) -> None:
        self.task, self._config = task, config.distribution
        self.asynchronous = task.asynchronous_by_default
        self.folder = run.cluster_path
        self._own_failure: BaseException | None = None
        others = {name: address for name, address in task.addresses().items() if name != task.name}
        self._peers = Peers(
            self.folder, task.name, task.address, others, timeout=self._config.peer_timeout_seconds
        )

    def join(self, plan: DevicePlan, stop: StopRequest) -> tf.distribute.Strategy | None:
        """Wait for all other tasks, start this one's server and return the strategy over all of them.

        Returns None where a stop was asked for meanwhile. Raises PeerLost that names who didn't appear.
        """
        import_tensorflow()
        listen_on(self._config.bind)
        self._peers.start()
        if not self._peers.rendezvous(self._config.rendezvous_seconds, lambda: bool(stop)):
            return None
        # The strategy blocks until the others are there, and nothing but this ends a wait for a lost one.
        self.watch(lambda message: None)
        if self.asynchronous:
            strategy = make_parameter_server_strategy(self.task)
        else:
            strategy = make_multi_worker_strategy(self.task, plan)
        stop.arm()
        return strategy

    def watch(self, on_loss) -> None:
        """From now on end this process when a task is lost that it can't do without.

        Args:
            on_loss: called with the message before that, from another thread.
        """

        def leave(message: str) -> None:
            try:
                on_loss(message)
            finally:
                die_of_loss(message)

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
        if lost is None and isinstance(error, BROKEN_STEP):
            self._own_failure = error  # all are there: this would happen again after a restart
            return None
        return lost or f"the cluster broke: {type(error).__name__}: {_reason(error)}"

    def silent_workers(self) -> list[str]:
        """Return the workers that have given no sign of life for long."""
        return [name for name in self._peers.silent() if name.startswith("worker:")]

    def a_server_stops(self) -> bool:
        """Return whether a parameter server was asked to stop, which ends asynchronous training."""
        return self.asynchronous and any(
            name.startswith("ps:") and beat.phase == "stopping" for name, beat in self._peers.beats().items()
        )

    def tell(self, step: int, examples_per_second: float | None) -> None:
        """Say in the next sign of life where this task is."""
        self._peers.tell(phase="training", step=step, examples_per_second=examples_per_second)

    def leave(self) -> None:
        """Say goodbye: what this task had to do is done."""
        self._peers.leave()


def _reason(error: BaseException) -> str:
    """Return the line of TensorFlow's message that says what happened: the last, before the node's name."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("[[")), "")[:300]
