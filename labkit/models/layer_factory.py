"""Make layers whose layout, precision, normalization and seed an architecture need not know."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from labkit.models.convolution import Conv2D, Whitening
from labkit.models.dropout import Dropout
from labkit.models.layers import BatchNormalization, Dirac, LocalResponseNormalization

__all__ = ["LayerFactory", "placed"]


def placed(layer: Any, scope: str) -> Any:
    """Return ``layer``, whose nodes from now on stand in a scope of the graph, for TensorBoard.

    Weights and the layer itself keep their names.

    Args:
        layer: a layer, or another ``keras.Operation``, of a network.
        scope: below the network's own, such as ``stage2/block1/conv2``.
    """
    call = layer.call

    @functools.wraps(call)
    def call_in_scope(*arguments: Any, **options: Any) -> Any:
        network = tf.get_current_name_scope()
        if isinstance(layer, keras.Layer):  # which Keras has given a scope of its own
            network = network.rpartition("/")[0]
        with tf.name_scope(f"{network}/{scope}/".removeprefix("/")):  # a final slash: not made unique
            return call(*arguments, **options)

    layer.call = call_in_scope
    return layer


class LayerFactory:
    """Make and apply layers with a common layout, precision, normalization and seed.

    Most methods apply a new layer to a Keras tensor. Every layer with random initial weights gets its own
    seed, derived from ``seed`` and the order of construction. Every layer gets a name that says where in the
    network it is, such as ``stage2_block1_conv2`` (see ``name_scope``). Keras's own names count the layers of
    the whole process, so they would differ between two runs.

    Args:
        data_format: ``channels_last`` or ``channels_first``.
        dtype: Keras dtype policy of the layers, ``float32``, ``mixed_bfloat16`` or ``float64``.
        seed: decides the initial weights.
        batch_norm_decay, batch_norm_epsilon, sync_batch_norm: see ``BatchNormalization``.
        dropout_rate: see ``Dropout``; 0 makes no such layers.
    """

    conv_layer: type[keras.layers.Conv2D] = Conv2D
    whitening_layer: type[keras.layers.Conv2D] = Whitening

    def __init__(
        self,
        *,
        data_format: str = "channels_last",
        dtype: str = "float32",
        seed: int = 0,
        batch_norm_decay: float = 0.997,
        batch_norm_epsilon: float = 1e-5,
        sync_batch_norm: bool = False,
        dropout_rate: float = 0.0,
    ) -> None:
        self.data_format = data_format
        self.dtype = dtype
        self._seed = seed
        self._dropout_rate = dropout_rate
        self._layers_with_weights = 0
        self._scope: str | None = None
        self._names: Counter[str] = Counter()
        self._batch_norm: dict[str, Any] = {
            "decay": batch_norm_decay,
            "epsilon": batch_norm_epsilon,
            "synchronized": sync_batch_norm,
        }

    @contextlib.contextmanager
    def name_scope(self, scope: str) -> Iterator[None]:
        """Name the layers made within the block ``<scope>_conv1``, ``<scope>_norm1`` and so on.

        ``scope`` must begin with the stage, for example ``stage2`` or ``stage2_block1``: freezing finds the
        layers of a stage by it (``labkit.models.stages``). TensorBoard shows all layers made within the block
        in one box of the graph, here ``stage2/block1``.
        """
        outer, self._scope = self._scope, scope
        try:
            yield
        finally:
            self._scope = outer

    def _name(self, kind: str) -> str:
        """Return the next name for a layer of this kind: ``<scope>_<kind>1``, without scope ``<kind>1``."""
        stem = kind if self._scope is None else f"{self._scope}_{kind}"
        self._names[stem] += 1
        return f"{stem}{self._names[stem]}"

    def _apply(self, layer: keras.Operation, inputs: Any) -> Any:
        """Return the outputs of a new layer, which is placed in the current scope."""
        return self._place(layer)(inputs)

    def _place(self, layer: Any) -> Any:
        """Return ``layer``, placed in the current scope."""
        if self._scope is None:
            return layer
        name = layer.name.removeprefix(f"{self._scope}_")
        return placed(layer, f"{self._scope.replace('_', '/')}/{name}")

    def next_seed(self) -> int:
        """Return the seed of the next layer with random initial weights."""
        seed = self._seed_ahead()
        self._layers_with_weights += 1
        return seed

    def _seed_ahead(self) -> int:
        return (self._seed * 1_000_003 + self._layers_with_weights + 1) % 2**31

    def channels(self, x) -> int:
        """Return the number of channels of ``x``."""
        return x.shape[-1 if self.data_format == "channels_last" else 1]

    def conv(
        self,
        x,
        filters: int,
        kernel_size: int,
        stride: int = 1,
        *,
        padding: str = "same",
        dirac: bool = False,
    ):
        """Convolution without bias, He initialization (He et al., 2015b).

        ``padding``: see ``_padded``. ``dirac``: initialize the first filters, one for each input channel, to
        the identity.
        """
        initializer = keras.initializers.HeNormal(self.next_seed())
        x, padding = self._padded(x, kernel_size, stride, padding)
        layer = self.conv_layer(
            filters,
            kernel_size,
            strides=stride,
            padding=padding,
            use_bias=False,
            data_format=self.data_format,
            kernel_initializer=Dirac(initializer) if dirac else initializer,
            dtype=self.dtype,
            name=self._name("conv"),
        )
        return self._apply(layer, x)

    def _padded(self, x, size: int, stride: int, padding: str) -> tuple[Any, str]:
        """Return ``x`` and the padding that a Keras layer with this window and stride has to add to it.

        ``padding``: ``valid`` or ``same`` as in Keras, whose ``same`` gives an even image and a stride of 2
        one zero more at the end than at the beginning; or ``symmetric``, as many at both sides, as Caffe and
        PyTorch do. Weights from there, and those of keras.applications, expect the latter.
        """
        if padding != "symmetric":
            return x, padding
        if stride == 1 or size == 1:
            return x, "same"  # is symmetric
        layer = keras.layers.ZeroPadding2D(
            size // 2, data_format=self.data_format, dtype=self.dtype, name=self._name("pad")
        )
        return self._apply(layer, x), "valid"

    def biased_conv(
        self, x, filters: int, kernel_size: int, *, stddev: float | None = None, bias: float = 0.0
    ):
        """Convolution with initial bias ``bias``; ``stddev``: as in ``dense``."""
        layer = self.conv_layer(
            filters,
            kernel_size,
            padding="same",
            data_format=self.data_format,
            kernel_initializer=self._normal(stddev),
            bias_initializer=keras.initializers.Constant(bias),
            dtype=self.dtype,
            name=self._name("conv"),
        )
        return self._apply(layer, x)

    def _normal(self, stddev: float | None) -> keras.initializers.Initializer:
        """Return normal initial weights, truncated at 2 ``stddev``; None: He initialization."""
        seed = self.next_seed()
        if stddev is None:
            return keras.initializers.HeNormal(seed)
        return keras.initializers.TruncatedNormal(0.0, stddev, seed)

    def dense(self, x, units: int, *, stddev: float | None = None, bias: float = 0.0):
        """Dense layer on [batch, features].

        ``stddev``: of normal initial weights, truncated at twice that; None: He initialization.
        """
        layer = keras.layers.Dense(
            units,
            kernel_initializer=self._normal(stddev),
            bias_initializer=keras.initializers.Constant(bias),
            dtype=self.dtype,
            name=self._name("dense"),
        )
        return self._apply(layer, x)

    def whitening(self, x):
        """Convolution with a frozen 2x2 kernel that whitens patches of the images."""
        layer = self.whitening_layer(
            2 * 2 * 2 * self.channels(x),
            2,
            use_bias=False,
            data_format=self.data_format,
            kernel_initializer=keras.initializers.HeNormal(self.next_seed()),
            dtype=self.dtype,
            name=self._name("whitening"),
        )
        return self._apply(layer, x)

    def norm(self, x, *, scale: bool = True):
        """Batch normalization; ``scale``: whether gamma is trained."""
        return self._apply(self.norm_layer(name=self._name("norm"), scale=scale), x)

    def norm_layer(
        self,
        *,
        name: str | None,
        scale: bool = True,
        epsilon: float | None = None,
        data_format: str | None = None,
    ) -> keras.Layer:
        """Return a batch normalization layer; for ``epsilon`` and ``data_format``, None is the factory's."""
        changes = {} if epsilon is None else {"epsilon": epsilon}
        return BatchNormalization(
            data_format=data_format or self.data_format,
            dtype=self.dtype,
            scale=scale,
            name=name,
            **(self._batch_norm | changes),
        )

    def relu(self, x):
        """Rectified linear unit."""
        return self._apply(keras.layers.ReLU(dtype=self.dtype, name=self._name("relu")), x)

    def _activation(self, name: str, x):
        return self._apply(keras.layers.Activation(name, dtype=self.dtype, name=self._name(name)), x)

    def sigmoid(self, x):
        """Logistic function."""
        return self._activation("sigmoid", x)

    def local_response_norm(self, x, *, depth_radius: int, bias: float, alpha: float, beta: float):
        """Local response normalization; see ``LocalResponseNormalization``."""
        layer = LocalResponseNormalization(
            depth_radius,
            bias,
            alpha,
            beta,
            data_format=self.data_format,
            dtype=self.dtype,
            name=self._name("local_response_norm"),
        )
        return self._apply(layer, x)

    def gelu(self, x):
        """Gaussian error linear unit (Hendrycks & Gimpel, 2016, arXiv:1606.08415)."""
        return self._activation("gelu", x)

    def silu(self, x):
        """Sigmoid linear unit (Hendrycks & Gimpel, 2016; Ramachandran et al., 2017, arXiv:1710.05941)."""
        return self._activation("silu", x)

    def norm_relu(self, x):
        """Batch normalization, then rectified linear unit."""
        return self.relu(self.norm(x))

    def add(self, x, y):
        """Sum of two tensors of the same shape."""
        return self._apply(keras.layers.Add(dtype=self.dtype, name=self._name("add")), [x, y])

    def average_pool(self, x, size: int):
        """Average over ``size`` x ``size`` windows that don't overlap; those at the border may be smaller."""
        layer = keras.layers.AveragePooling2D(
            size,
            padding="same",
            data_format=self.data_format,
            dtype=self.dtype,
            name=self._name("average_pool"),
        )
        return self._apply(layer, x)

    def max_pool(self, x, size: int, stride: int | None = None, *, padding: str = "valid"):
        """Maximum over ``size`` x ``size`` windows.

        Args:
            x: float tensor of rank 4.
            size: side of a window.
            stride: distance of the windows; None is ``size``, so that they don't overlap.
            padding: ``valid`` drops pixels at the border that don't fill a window; ``same`` pools them too;
                ``symmetric`` adds zeros on both sides (``_padded``), below which ``x`` must not be.
        """
        x, padding = self._padded(x, size, stride or size, padding)
        layer = keras.layers.MaxPooling2D(
            size,
            stride,
            padding,
            data_format=self.data_format,
            dtype=self.dtype,
            name=self._name("max_pool"),
        )
        return self._apply(layer, x)

    def global_max(self, x):
        """Maximum over height and width: [batch, channels]."""
        layer = keras.layers.GlobalMaxPooling2D(
            data_format=self.data_format, dtype=self.dtype, name=self._name("global_max")
        )
        return self._apply(layer, x)

    def pad_channels(self, x, channels: int):
        """Add zero channels on both sides, up to ``channels`` in total."""
        extra = channels - self.channels(x)
        added = (extra // 2, extra - extra // 2)
        # The layer pads the two axes that it takes for height and width. In the other layout, one of them is
        # the axis of the channels. (``keras.ops.pad`` would make an operation without a name of ours.)
        last = self.data_format == "channels_last"
        layer = keras.layers.ZeroPadding2D(
            ((0, 0), added) if last else (added, (0, 0)),
            data_format="channels_first" if last else "channels_last",
            dtype=self.dtype,
            name=self._name("pad"),
        )
        return self._apply(layer, x)

    def global_average(self, x, *, data_format: str | None = None):
        """Average over height and width: [batch, channels]; ``data_format``: None is the factory's."""
        layer = keras.layers.GlobalAveragePooling2D(
            data_format=data_format or self.data_format,
            dtype=self.dtype,
            name=self._name("global_average"),
        )
        return self._apply(layer, x)

    def flatten(self, x):
        """Flatten to [batch, height * width * channels], with the same order of features in both layouts."""
        layer = keras.layers.Flatten(
            data_format=self.data_format, dtype=self.dtype, name=self._name("flatten")
        )
        return self._apply(layer, x)

    def dropout(self, x):
        """Set random features of [batch, features] to zero in training, if the factory has a rate for it."""
        if not self._dropout_rate:
            return x
        seed = self._seed_ahead()  # leaves the initial weights of the layers behind it as they are without it
        layer = Dropout(self._dropout_rate, seed, dtype=self.dtype, name=self._name("dropout"))
        return self._apply(layer, x)

    def scale_channels(self, x, factors):
        """Multiply each channel of ``x`` by its factor; ``factors``: [batch, channels]."""
        channels = self.channels(x)
        shape = (1, 1, channels) if self.data_format == "channels_last" else (channels, 1, 1)
        factors = self._apply(
            keras.layers.Reshape(shape, dtype=self.dtype, name=self._name("reshape")), factors
        )
        return self._apply(keras.layers.Multiply(dtype=self.dtype, name=self._name("multiply")), [x, factors])

    def logits(
        self, x, num_classes: int, *, use_bias: bool = True, scale: float = 1.0, stddev: float | None = None
    ):
        """Dense layer in float32 or float64, so that the loss is computed in full precision.

        ``dropout`` comes before it.

        Args:
            x: features [batch, features].
            num_classes: number of logits.
            use_bias: whether the layer has a bias.
            scale: constant factor of the logits.
            stddev: as in ``dense``; None: Glorot initialization.
        """
        seed = self.next_seed()
        initializer = (
            keras.initializers.GlorotUniform(seed)
            if stddev is None
            else keras.initializers.TruncatedNormal(0.0, stddev, seed)
        )
        dtype = "float64" if self.dtype == "float64" else "float32"
        x = self.dropout(x)
        layer = keras.layers.Dense(
            num_classes, use_bias=use_bias, kernel_initializer=initializer, dtype=dtype, name="logits"
        )
        logits = self._apply(layer, x)
        if scale == 1.0:
            return logits
        return self._apply(keras.layers.Rescaling(scale, dtype=dtype, name="scaled_logits"), logits)
