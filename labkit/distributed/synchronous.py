"""The ``tf.distribute`` strategies for several processes, the engine of synchronous training, and what every
engine takes and reports.
"""

import functools
import operator
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from labkit.distributed.devices import Devices
from labkit.distributed.peers import PeerLost
from labkit.distributed.task import ClusterTask
from labkit.run_directory.worker_metrics import StepSpans
from labkit.startup.tf_compat import (
    local_cpu_replicas,
    without_coordination_service,
)


def make_multi_worker_strategy(task: ClusterTask, devices: Devices) -> tf.distribute.Strategy:
    """Start this worker's server and return the strategy over all workers' devices.

    Must be called before the first operation of this process.

    Args:
        task: of a synchronous cluster.
        devices: of this process; every worker has the same number.

    Raises PeerLost if another process uses the task's port.
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(addresses) for job, addresses in task.jobs.items()}),
        task_type=task.job_name,
        task_id=task.task_index,
        num_accelerators={"GPU": devices.num_local_replicas} if devices.kind == "GPU" else {},
        rpc_layer="grpc",
    )
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    automatic = tf.distribute.experimental.CommunicationImplementation.AUTO
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=automatic if devices.kind == "GPU" else ring
    )
    with (
        local_cpu_replicas(devices.num_local_replicas if devices.kind == "CPU" else 0),
        without_coordination_service(),
    ):
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        except tf.errors.UnknownError as error:
            # The port was free when it was chosen; a restart takes another one.
            raise PeerLost(f"{task.name} can't listen at {task.address}: {error.message}") from None


def make_parameter_server_strategy(task: ClusterTask) -> tf.distribute.Strategy:
    """Connect the coordinator to its workers and servers and return the strategy.

    Blocks until all of them are reachable.
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(task.jobs[job]) for job in ("chief", "worker", "ps")}),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
    return tf.distribute.ParameterServerStrategy(resolver)


@contextmanager
def variables_on_servers(placement: str, num_ps: int) -> Iterator[None]:
    """Distribute the variables created inside over the parameter servers. Enter it in the strategy's scope.

    ``round_robin`` is TensorFlow's default: server 0, 1, 2, 0, … in order of creation. It balances the number
    of variables, but not their bytes, most of which are in a network's last layers. ``greedy`` gives each
    variable to the server with the fewest bytes so far, like ``GreedyLoadBalancingStrategy`` with
    ``byte_size_load_fn`` in TensorFlow 1, which balances network traffic. In both, a variable that is
    colocated with another one is placed with it.
    """
    if placement == "round_robin" or num_ps < 2:
        yield
        return
    # The strategy ignores devices but honours colocation, so create a scalar on each server to colocate with.
    anchors = [tf.Variable(0.0, trainable=False, name=f"anchor_{index}") for index in range(num_ps)]
    num_bytes = [0] * num_ps

    def create(next_creator: Any, **arguments: Any) -> Any:
        if arguments.get("colocate_with") is None:
            value = arguments["initial_value"]
            value = tf.convert_to_tensor(value() if callable(value) else value, dtype=arguments.get("dtype"))
            arguments["initial_value"] = value
            server = num_bytes.index(min(num_bytes))
            num_bytes[server] += value.shape.num_elements() * value.dtype.size
            arguments["colocate_with"] = anchors[server]
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


@functools.lru_cache(maxsize=1)
def gathered(strategy: tf.distribute.Strategy) -> Callable[[Any], tf.Tensor]:
    """Return a function of a value for each replica that concatenates them in order along the first axis."""

    # Compiled once: the eager call compiles at each use, and TensorFlow warns of that.
    @tf.function(reduce_retracing=True, autograph=False)
    def gather(values):
        return strategy.gather(values, axis=0)

    return gather


def everywhere(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    """Return the ``value`` of every replica, in order; waits for all workers."""
    local = strategy.experimental_distribute_values_from_function(lambda _: tf.constant([value], tf.int64))
    return gathered(strategy)(local).numpy().tolist()


@dataclass(frozen=True)
class Steps:
    """The steps of a training, for its engine. Each function takes the number of steps before the one meant.

    ``strategy``: that they are compiled for. ``num_workers``: how many processes compute gradients.
    ``compiled_at`` and ``learning_rate_at`` return the step itself and its learning rate;
    ``exchanged_bytes_at`` how much each synchronous worker sends and receives in it. ``named`` returns the
    metrics of a step by their keys in a metrics row, ``observation`` what an inspected step showed.
    ``updates``: the variable that counts the updates of the weights.
    """

    strategy: tf.distribute.Strategy
    num_workers: int
    compiled_at: Callable[[int], Callable[..., Any]]
    learning_rate_at: Callable[[int], float]
    exchanged_bytes_at: Callable[[int], float]
    named: Callable[[list[float]], dict[str, float]]
    observation: Callable[..., Any]
    updates: tf.Variable


@dataclass(frozen=True)
class StepResult:
    """One completed training step.

    ``step`` counts completed steps, in the order in which they ended. ``metrics`` of its batch have the keys
    of a metrics row: ``loss``, ``accuracy``, and what the loss adds. ``seconds`` of wall time that the step
    accounts for, of which ``waited`` for the input. ``worker`` made it: ``worker_seconds`` from its batch to
    its end, of which ``exchanged`` between devices or processes (NaN where that isn't measured);
    ``bytes_sent`` and ``bytes_received`` by the worker, to and from other processes. ``staleness``: updates
    by other workers between its read of the weights and its update; None in synchronous training.
    ``observation``: of an inspected step, a ``labkit.inspection.observer.Observation``; None of others.
    ``spans``: when the worker did what.
    """

    step: int
    metrics: dict[str, float]
    learning_rate: float
    seconds: float
    waited: float
    exchanged: float
    worker: str
    worker_seconds: float
    bytes_sent: float = 0.0
    bytes_received: float = 0.0
    staleness: int | None = None
    observation: Any | None = None
    spans: StepSpans | None = None


class SlowWorker:
    """``--slow-worker``: the wait of a synchronous worker, between two of its steps.

    Args:
        factor: how many times as long each step's computing takes; 1 waits never.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._compiled: set[Any] = set()

    def wait(self, train_step: Any, computed: float) -> None:
        """Sleep factor - 1 times ``computed``, the seconds of computing of the step that has just ended.

        The first call of a ``train_step`` compiles it, which no slow machine does again: it isn't followed by
        a wait.
        """
        if train_step in self._compiled:
            time.sleep((self._factor - 1) * max(0.0, computed))
        self._compiled.add(train_step)


class SynchronousEngine:
    """Runs the training steps of this process, synchronously with all other workers, if any.

    Args:
        steps: compiled.
        batches: the distributed batches from the next step on.
        step: steps completed so far.
        stopping: returns whether this process was asked to stop.
        name: this worker's name.
        beginning: is called with each step, when its input is there.
        slowness: how many times as long as it takes this worker waits in all, for experiments.
    """

    def __init__(
        self,
        steps: Steps,
        batches: Iterator[Any],
        *,
        step: int,
        stopping: Callable[[], bool] = lambda: False,
        name: str = "worker:0",
        beginning: Callable[[int], None] = lambda step: None,
        slowness: float = 1.0,
    ) -> None:
        self._steps, self._batches = steps, batches
        self._step, self._stopping, self._name, self._beginning = step, stopping, name, beginning
        self._alone = steps.num_workers == 1
        self._all_stop = False
        self._ended: float | None = None  # the last step, in seconds since 1970
        self._slow_worker = SlowWorker(slowness)

    def next_step(self, *, start_more: bool = True) -> StepResult:
        """Run one step. ``start_more`` is ignored: only the asynchronous engine uses it."""
        asked, started = time.time(), time.perf_counter()
        images, labels = next(self._batches)
        waited = time.perf_counter() - started
        learning_rate = self._steps.learning_rate_at(self._step)
        train_step = self._steps.compiled_at(self._step)
        arguments = (
            images,
            labels,
            tf.constant(learning_rate, tf.float32),
            tf.constant(float(self._stopping()), tf.float32),
        )
        self._beginning(self._step + 1)
        metrics, moments, *observed = train_step(*arguments)
        *values, stops = metrics.numpy().tolist()
        self._all_stop = stops > 0
        exchange_began, exchange_ended = moments.numpy().tolist()
        exchanged = exchange_ended - exchange_began
        self._slow_worker.wait(train_step, time.perf_counter() - started - waited - exchanged)
        exchanged_bytes = self._steps.exchanged_bytes_at(self._step)
        observation = self._steps.observation(self._step, *observed) if observed else None
        self._step += 1
        seconds = time.perf_counter() - started
        began, ended = self._ended or asked, asked + seconds
        ends = [("rest", asked), ("input", asked + waited), ("rest", ended)]
        if exchanged > 0:
            ends[2:2] = [("compute", exchange_began), ("exchange", exchange_ended)]
        self._ended = ended
        return StepResult(
            step=self._step,
            metrics=self._steps.named(values),
            learning_rate=learning_rate,
            seconds=seconds,
            waited=waited,
            exchanged=exchanged,
            worker=self._name,
            worker_seconds=seconds - waited,
            bytes_sent=exchanged_bytes,
            bytes_received=exchanged_bytes,
            observation=observation,
            spans=StepSpans(self._step, began, tuple(ends)),
        )

    def is_idle(self) -> bool:
        """Return True: no step is under way once ``next_step`` has returned."""
        return True

    def stop_is_agreed(self) -> bool:
        """Return whether a worker was asked to stop; all workers return the same after the same step."""
        return self._stopping() if self._alone else self._all_stop

    def repeated_updates(self) -> int:
        """Return the number of updates made twice, which is always 0 here."""
        return 0

    def any_worker(self, flags: int) -> int:
        """Return the bits that are set in the ``flags`` of any worker; waits for all of them."""
        if self._alone:
            return flags
        return functools.reduce(operator.or_, everywhere(self._steps.strategy, flags))

    def agree(self, value: int, what: str) -> None:
        """Wait for all workers. Raises PeerLost if they don't all have the same ``value``.

        Values come from files that all workers share, so a difference means that one reads an old version.

        Args:
            what: describes the value in the error message.
        """
        if self._alone:
            return
        values = everywhere(self._steps.strategy, value)
        if min(values) != max(values):
            raise PeerLost(
                f"the workers differ in {what}: {', '.join(map(str, values))}; does each see the newest "
                "files of the run directory?"
            )
