"""Training steps for tests, compiled as a session compiles them."""

from typing import Any

import tensorflow as tf

from labkit.training.step import make_train_step

__all__ = ["compiled_step"]


def compiled_step(*arguments: Any, **options: Any) -> Any:
    """Return ``make_train_step`` of the same arguments, compiled."""
    return tf.function(make_train_step(*arguments, **options), reduce_retracing=True, autograph=False)
