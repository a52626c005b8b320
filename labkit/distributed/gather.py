"""Values of all replicas, in every process."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["everywhere", "gathered"]


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
