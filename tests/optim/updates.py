"""An update of weights as a training makes it: in a compiled step, merged over the replicas."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["updated"]


def updated(
    model: Any,
    optimizer: Any,
    gradients: Sequence[Any],
    rate: float,
    indices: Sequence[int] | None = None,
    *,
    times: int = 1,
) -> list[np.ndarray]:
    """Return the trainable weights of ``model`` after ``times`` updates by the same gradients."""

    @tf.function
    def step() -> None:
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: optimizer.apply(strategy, gradients, tf.constant(rate), indices) and None
        )

    for _ in range(times):
        step()
    return [weight.numpy() for weight in model.trainable_variables]
