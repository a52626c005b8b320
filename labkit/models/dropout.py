"""Dropout whose masks depend only on the seed, the step and the example's position in the global batch."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

__all__ = ["Dropout", "dropout_draws"]

# Thread-local, because MirroredStrategy traces each replica in its own thread.
_DRAWS = threading.local()


@contextlib.contextmanager
def dropout_draws(step: Any, first: Any, global_batch_size: int) -> Iterator[None]:
    """Say which masks the ``Dropout`` layers draw that are called for training in the block.

    Args:
        step: steps completed before this one, int64 scalar.
        first: position of the first image of the replica's slice in the global batch, integer scalar.
        global_batch_size: examples in the step, over all replicas.
    """
    outer = getattr(_DRAWS, "current", None)
    _DRAWS.current = step, first, global_batch_size
    try:
        yield
    finally:
        _DRAWS.current = outer


@keras.saving.register_keras_serializable(package="labkit")
class Dropout(keras.layers.Layer):
    """Set random features to zero, and divide the others by the share that is kept.

    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (2014), in the form
    that leaves predictions as they are. The masks of the whole global batch are drawn in each replica, which
    takes its slice of them: so N replicas drop what one drops, and a resumed run what an uninterrupted one
    does.

    Args:
        rate: expected share of the features that are set to zero, from 0 and below 1.
        seed: of the masks.

    Call arguments: ``inputs``, float [batch, features], and ``training``. Returns a tensor of the same shape
    and dtype. Outside of ``dropout_draws``, nothing is dropped in training either.
    """

    def __init__(self, rate: float, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate, self.seed = rate, seed

    def call(self, inputs, training=False):
        draws = getattr(_DRAWS, "current", None)
        if not training or draws is None:
            return inputs
        step, first, global_batch_size = draws
        shape, seed = [global_batch_size, *inputs.shape[1:]], tf.stack([self.seed, tf.cast(step, tf.int64)])
        # Named, so that XLA and GPUs draw the same numbers as the CPU.
        drawn = tf.random.stateless_uniform(shape, seed, alg="philox")
        mine = tf.slice(drawn, [tf.cast(first, tf.int32), 0], [tf.shape(inputs)[0], shape[1]])
        kept = tf.cast(mine >= self.rate, inputs.dtype)
        return inputs * kept * tf.cast(1.0 / (1.0 - self.rate), inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"rate": self.rate, "seed": self.seed}
