"""Layers of vision transformers and ConvNeXt, channels last."""

from typing import Any

import keras
import numpy as np


def attended(x: Any, heads: int) -> Any:
    """Return softmax(q k / sqrt(d)) v over all positions of an image (Vaswani et al., 2017, equation 1).

    Args:
        x: float [batch, height, width, 3 * channels]: queries, keys and values, in this order.
        heads: parts of the channels, each with an attention of its own; d is their size.

    Returns [batch, height, width, channels] of the same dtype.
    """
    ops, (height, width, channels) = keras.ops, x.shape[1:]
    channels //= 3
    shape = (-1, height * width, heads, channels // heads)
    queries, keys, values = (ops.reshape(part, shape) for part in ops.split(x, 3, axis=-1))
    scores = ops.matmul(ops.transpose(queries, (0, 2, 1, 3)), ops.transpose(keys, (0, 2, 3, 1)))
    shares = ops.softmax(scores * (channels // heads) ** -0.5)
    mixed = ops.transpose(ops.matmul(shares, ops.transpose(values, (0, 2, 1, 3))), (0, 2, 1, 3))
    return ops.reshape(mixed, (-1, height, width, channels))


def positions(height: int, width: int, channels: int) -> np.ndarray:
    """Return sines and cosines of the places of an image, float32 [height, width, channels].

    As ``posemb_sincos_2d`` of big_vision (Beyer et al., 2022, arXiv:2205.01580): a quarter of the channels
    each has sine and cosine of the column, sine and cosine of the row, with frequencies from 1 to 1/10,000.
    """
    frequencies = 10_000.0 ** -np.linspace(0.0, 1.0, channels // 4)
    rows, columns = np.mgrid[:height, :width][..., None] * frequencies
    parts = [np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)]
    return np.concatenate(parts, axis=-1).astype(np.float32)


@keras.saving.register_keras_serializable(package="labkit")
class Attention(keras.layers.Layer):
    """``attended`` as a layer. Call argument: ``inputs``, queries, keys and values of each position."""

    def __init__(self, heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads

    def call(self, inputs):
        return attended(inputs, self.heads)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"heads": self.heads}


@keras.saving.register_keras_serializable(package="labkit")
class Positions(keras.layers.Layer):
    """Add ``positions`` to ``inputs``, float [batch, height, width, channels]."""

    def call(self, inputs):
        return inputs + keras.ops.cast(positions(*inputs.shape[1:]), inputs.dtype)


@keras.saving.register_keras_serializable(package="labkit")
class ChannelScale(keras.layers.Layer):
    """Multiply each channel of ``inputs``, float [..., channels], by a trained factor.

    Args:
        initial: value of the factors.
    """

    def __init__(self, initial: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.kernel = self.add_weight(shape=(input_shape[-1],), initializer=initializer, name="kernel")

    def call(self, inputs):
        return inputs * self.kernel

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"initial": self.initial}
