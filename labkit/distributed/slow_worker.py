"""``--slow-worker``: one worker waits in each step, as if its computing took several times as long.

Nothing that is computed changes.
"""

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from labkit.distributed.exchange import time_after

__all__ = ["SlowWorker", "slowed_down"]


class SlowWorker:
    """The wait of a synchronous worker, between two of its steps.

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


def slowed_down(
    tensors: Sequence[tf.Tensor], slow_worker: tuple[int, float], *, since: tf.Tensor
) -> list[tf.Tensor]:
    """Return ``tensors``, on the slow worker factor times as long after ``since`` as they were there.

    For a step that a ``ClusterCoordinator`` schedules on any of its workers. The wait is an operation of the
    step's graph, because the worker runs no Python; it occupies a thread, but no core.

    Args:
        tensors: what the worker has computed.
        slow_worker: its index, and the factor.
        since: time at which it started computing, float64 seconds.
    """
    index, factor = slow_worker
    here = tf.distribute.coordinator.experimental_get_current_worker_index()
    seconds = tf.where(tf.equal(here, index), factor - 1, 0.0)
    waited = _sleep(tf.cast(seconds, tf.float64) * (time_after(tensors) - since))
    with tf.control_dependencies([waited]):
        return [tf.identity(tensor) for tensor in tensors]


def _sleep(seconds: tf.Tensor) -> tf.Tensor:
    """Return a tensor that is there after ``seconds``: the one element of a dataset that takes so long."""
    like = {"output_types": [tf.int32], "output_shapes": [[]]}
    with tf.device("CPU:0"):
        element = tf.raw_ops.TensorDataset(components=[tf.constant(0)], output_shapes=[[]])
        slow = tf.raw_ops.SleepDataset(
            input_dataset=element, sleep_microseconds=tf.cast(seconds * 1e6, tf.int64), **like
        )
        # Without it, the look for a second element would take as long again.
        first = tf.raw_ops.TakeDataset(input_dataset=slow, count=tf.constant(1, tf.int64), **like)
        return tf.raw_ops.DatasetToSingleElement(dataset=first, **like)[0]
