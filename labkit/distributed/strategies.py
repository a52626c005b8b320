"""The ``tf.distribute`` strategies for several processes."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from labkit.distributed.devices import Devices
from labkit.distributed.peers import PeerLost
from labkit.distributed.task import ClusterTask
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
