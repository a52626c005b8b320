"""Layers with everything decided that an architecture should not have to know."""

import keras

from labkit.models.layers import BatchNormalization

__all__ = ["Toolbox"]


class Toolbox:
    """Make and apply layers with one layout, precision, normalization and seed.

    Each method applies a new layer to a Keras tensor. Every layer with random initial weights gets a
    seed of its own, derived from ``seed`` and the order of construction.

    Args:
        data_format: ``channels_last`` or ``channels_first``.
        dtype: Keras dtype policy of the layers, ``float32``, ``mixed_bfloat16`` or ``float64``.
        seed: decides the initial weights.
        batch_norm_decay, batch_norm_epsilon, sync_batch_norm: see ``BatchNormalization``.
    """

    def __init__(
        self,
        *,
        data_format: str = "channels_last",
        dtype: str = "float32",
        seed: int = 0,
        batch_norm_decay: float = 0.997,
        batch_norm_epsilon: float = 1e-5,
        sync_batch_norm: bool = False,
    ) -> None:
        self.data_format = data_format
        self.dtype = dtype
        self._seed = seed
        self._layers_with_weights = 0
        self._batch_norm = {
            "decay": batch_norm_decay,
            "epsilon": batch_norm_epsilon,
            "synchronized": sync_batch_norm,
        }

    def _next_seed(self) -> int:
        self._layers_with_weights += 1
        return (self._seed * 1_000_003 + self._layers_with_weights) % 2**31

    def channels(self, x) -> int:
        """Return the number of channels of ``x``."""
        return x.shape[-1 if self.data_format == "channels_last" else 1]

    def conv(self, x, filters: int, kernel_size: int, stride: int = 1):
        """Convolution without bias, ``same`` padding, He initialization (He et al., 2015b)."""
        layer = keras.layers.Conv2D(
            filters,
            kernel_size,
            strides=stride,
            padding="same",
            use_bias=False,
            data_format=self.data_format,
            kernel_initializer=keras.initializers.HeNormal(self._next_seed()),
            dtype=self.dtype,
        )
        return layer(x)

    def norm(self, x):
        """Batch normalization."""
        return BatchNormalization(data_format=self.data_format, dtype=self.dtype, **self._batch_norm)(x)

    def relu(self, x):
        """Rectified linear unit."""
        return keras.layers.ReLU(dtype=self.dtype)(x)

    def norm_relu(self, x):
        """Batch normalization, then rectified linear unit."""
        return self.relu(self.norm(x))

    def add(self, x, y):
        """Sum of two tensors of one shape."""
        return keras.layers.Add(dtype=self.dtype)([x, y])

    def average_pool(self, x, size: int):
        """Average over ``size`` x ``size`` windows that don't overlap."""
        return keras.layers.AveragePooling2D(size, data_format=self.data_format, dtype=self.dtype)(x)

    def pad_channels(self, x, channels: int):
        """Zero channels before and after, up to ``channels``."""
        extra = channels - self.channels(x)
        channel_padding = [extra // 2, extra - extra // 2]
        padding = [[0, 0], [0, 0], [0, 0], channel_padding]
        if self.data_format == "channels_first":
            padding = [[0, 0], channel_padding, [0, 0], [0, 0]]
        return keras.ops.pad(x, padding)

    def global_average(self, x):
        """Average over height and width: [batch, channels]."""
        return keras.layers.GlobalAveragePooling2D(data_format=self.data_format, dtype=self.dtype)(x)

    def logits(self, x, num_classes: int):
        """Dense layer in float32 at least, so that the loss is computed in full precision."""
        initializer = keras.initializers.GlorotUniform(self._next_seed())
        dtype = "float64" if self.dtype == "float64" else "float32"
        return keras.layers.Dense(num_classes, kernel_initializer=initializer, dtype=dtype, name="logits")(x)
