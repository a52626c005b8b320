"""Make layers whose layout, precision, normalization and seed an architecture need not know."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from labkit.models.activation import Activation
from labkit.models.attention import Attention, ChannelScale, Positions
from labkit.models.convolution import Conv2D, Dirac, Whitening
from labkit.models.layers import BatchNormalization, Dropout, LocalResponseNormalization

# Of squeeze and excitation (Hu et al., section 3.3): 16 channels have one hidden unit, as in PyTorchCV.
REDUCTION = 16


def in_scope(layer: Any, scope: str) -> Any:
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
    activation_layer: type[keras.layers.Activation] = Activation
    dropout_layer: type[keras.layers.Layer] = Dropout
    dirac_initializer: Callable[[Any], Any] = Dirac

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
        layers of a stage by it (``labkit.models.freezing``). TensorBoard shows all layers made within the
        block in one box of the graph, here ``stage2/block1``.
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

    def _apply(self, layer: Any, kind: str, inputs: Any, /, *arguments: Any, **options: Any) -> Any:
        """Return the outputs of a new layer of class ``layer``, of the factory's precision.

        ``kind``: the word in the layer's name, such as ``conv``. ``arguments``, ``options``: the layer's.
        """
        if "name" not in options:
            options["name"] = self._name(kind)
        return self._in_scope(layer(*arguments, **{"dtype": self.dtype, **options}))(inputs)

    def _in_scope(self, layer: Any) -> Any:
        if self._scope is None:
            return layer
        name = layer.name.removeprefix(f"{self._scope}_")
        return in_scope(layer, f"{self._scope.replace('_', '/')}/{name}")

    @property
    def _layout(self) -> dict[str, str]:
        return {"data_format": self.data_format}

    def next_seed(self) -> int:
        """Return the seed of the next layer with random initial weights."""
        seed = self._seed_ahead()
        self._layers_with_weights += 1
        return seed

    def _seed_ahead(self) -> int:
        return (self._seed * 1_000_003 + self._layers_with_weights + 1) % 2**31

    def _normal(self, stddev: float | None) -> keras.initializers.Initializer:
        """Return normal initial weights, truncated at 2 ``stddev``; None: He initialization."""
        seed = self.next_seed()
        if stddev is None:
            return keras.initializers.HeNormal(seed)
        return keras.initializers.TruncatedNormal(0.0, stddev, seed)

    def channels(self, x) -> int:
        """Return the number of channels of ``x``."""
        return x.shape[-1 if self.data_format == "channels_last" else 1]

    # ---- convolutions and dense layers -------------------------------------------------------------

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
        initializer = self._normal(None)
        x, padding = self._padded(x, kernel_size, stride, padding)
        initializer = self.dirac_initializer(initializer) if dirac else initializer
        options = {"kernel_initializer": initializer, **self._layout}
        return self._apply(
            self.conv_layer, "conv", x, filters, kernel_size, stride, padding, use_bias=False, **options
        )

    def _padded(self, x, size: int, stride: int, padding: str | int) -> tuple[Any, str]:
        """Return ``x`` and the padding that a Keras layer with this window and stride has to add to it.

        ``padding``: ``valid`` or ``same`` as in Keras, whose ``same`` gives an even image and a stride of 2
        one zero more at the end than at the beginning; or ``symmetric``, as many at both sides, as Caffe and
        PyTorch do. Weights from there, and those of keras.applications, expect the latter. A number is that
        of zeros at each side.
        """
        if padding in ("valid", "same"):
            return x, str(padding)
        if padding == "symmetric":
            if stride == 1 or size == 1:
                return x, "same"  # is symmetric
            padding = size // 2
        return self._apply(keras.layers.ZeroPadding2D, "pad", x, padding, **self._layout), "valid"

    def biased_conv(
        self, x, filters: int, kernel_size: int, *, stride: int = 1, padding: str | int = "same",
        stddev: float | None = None, bias: float = 0.0,
    ):  # fmt: skip
        """Convolution with initial bias ``bias``; ``padding``: as ``_padded``; ``stddev``: as ``dense``."""
        x, padding = self._padded(x, kernel_size, stride, padding)
        options = {"padding": padding, **self._layout, **self._biased(stddev, bias)}
        return self._apply(self.conv_layer, "conv", x, filters, kernel_size, stride, **options)

    def depthwise_conv(self, x, kernel_size: int, *, stddev: float | None = None):
        """Convolution of each channel by itself, with a bias; ``stddev``: as in ``dense``."""
        options = {"padding": "same", "depthwise_initializer": self._normal(stddev), **self._layout}
        return self._apply(keras.layers.DepthwiseConv2D, "conv", x, kernel_size, **options)

    def dense(self, x, units: int, *, stddev: float | None = None, bias: float = 0.0):
        """Dense layer on [batch, ..., features].

        ``stddev``: of normal initial weights, truncated at twice that; None: He initialization.
        """
        return self._apply(keras.layers.Dense, "dense", x, units, **self._biased(stddev, bias))

    def _biased(self, stddev: float | None, bias: float) -> dict[str, Any]:
        constant = keras.initializers.Constant(bias)
        return {"kernel_initializer": self._normal(stddev), "bias_initializer": constant}

    def whitening(self, x):
        """Convolution with a frozen 2x2 kernel that whitens patches of the images."""
        filters, options = 2 * 2 * 2 * self.channels(x), {"use_bias": False, **self._layout}
        initializer = self._normal(None)
        return self._apply(
            self.whitening_layer, "whitening", x, filters, 2, kernel_initializer=initializer, **options
        )

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
        if stddev is None:
            initializer: Any = keras.initializers.GlorotUniform(self.next_seed())
        else:
            initializer = self._normal(stddev)
        options = {"dtype": "float64" if self.dtype == "float64" else "float32"}
        x = self.dropout(x)
        dense = {"use_bias": use_bias, "kernel_initializer": initializer, "name": "logits", **options}
        logits = self._apply(keras.layers.Dense, "dense", x, num_classes, **dense)
        if scale == 1.0:
            return logits
        return self._apply(
            keras.layers.Rescaling, "rescaling", logits, scale, name="scaled_logits", **options
        )

    # ---- transformers and ConvNeXt, channels last ----------------------------------------------------

    def channels_last(self, x):
        """Return ``x`` with its channels last, as all layers have them that are made from here on."""
        kind, order = keras.layers.Identity, ()
        if self.data_format == "channels_first":
            kind, order = keras.layers.Permute, ((2, 3, 1),)
        self.data_format = "channels_last"
        return self._apply(kind, "channels_last", x, *order)

    def layer_norm(self, x):
        """Layer normalization over the channels (Ba, Kiros & Hinton, 2016, arXiv:1607.06450)."""
        return self._apply(keras.layers.LayerNormalization, "norm", x, epsilon=1e-6)

    def layer_scale(self, x, initial: float, **options: Any):
        """Multiply each channel by a weight of its own (Touvron et al., "CaiT", 2021, arXiv:2103.17239)."""
        return self._apply(ChannelScale, "scale", x, initial, **options)

    def attention(self, x, heads: int):
        """Mix the positions of an image; see ``Attention``."""
        return self._apply(Attention, "attention", x, heads)

    def add_positions(self, x):
        """Add to each position of an image what tells it from others; see ``Positions``."""
        return self._apply(Positions, "positions", x)

    # ---- normalization and activations -------------------------------------------------------------

    def norm(self, x, *, scale: bool = True):
        """Batch normalization; ``scale``: whether gamma is trained."""
        return self._in_scope(self.norm_layer(name=self._name("norm"), scale=scale))(x)

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
        return self._apply(keras.layers.ReLU, "relu", x)

    def norm_relu(self, x):
        """Batch normalization, then rectified linear unit."""
        return self.relu(self.norm(x))

    def activation(self, x, name: str):
        """Function of Keras, such as ``sigmoid``, ``tanh``, ``gelu`` or ``silu``.

        The last two: Hendrycks & Gimpel, 2016, arXiv:1606.08415; Ramachandran et al., 2017, arXiv:1710.05941.
        """
        return self._apply(self.activation_layer, name, x, name)

    def local_response_norm(self, x, *, depth_radius: int, bias: float, alpha: float, beta: float):
        """Local response normalization; see ``LocalResponseNormalization``."""
        formula = {"depth_radius": depth_radius, "bias": bias, "alpha": alpha, "beta": beta}
        return self._apply(LocalResponseNormalization, "local_response_norm", x, **formula, **self._layout)

    def dropout(self, x):
        """Set random features of [batch, features] to zero in training, if the factory has a rate for it."""
        if not self._dropout_rate:
            return x
        seed = self._seed_ahead()  # leaves the initial weights of the layers behind it as they are without it
        return self._apply(Dropout, "dropout", x, self._dropout_rate, seed)

    # ---- pooling, sums and shapes ------------------------------------------------------------------

    def add(self, x, y):
        """Sum of two tensors of the same shape."""
        return self._apply(keras.layers.Add, "add", [x, y])

    def average_pool(self, x, size: int):
        """Average over ``size`` x ``size`` windows that don't overlap; those at the border may be smaller."""
        layer = keras.layers.AveragePooling2D
        return self._apply(layer, "average_pool", x, size, padding="same", **self._layout)

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
        return self._apply(keras.layers.MaxPooling2D, "max_pool", x, size, stride, padding, **self._layout)

    def global_max(self, x):
        """Maximum over height and width: [batch, channels]."""
        return self._apply(keras.layers.GlobalMaxPooling2D, "global_max", x, **self._layout)

    def global_average(self, x):
        """Average over height and width: [batch, channels]."""
        return self._apply(keras.layers.GlobalAveragePooling2D, "global_average", x, **self._layout)

    def flatten(self, x):
        """Flatten to [batch, height * width * channels], with the same order of features in both layouts."""
        return self._apply(keras.layers.Flatten, "flatten", x, **self._layout)

    def pad_channels(self, x, channels: int):
        """Add zero channels on both sides, up to ``channels`` in total."""
        extra = channels - self.channels(x)
        added = (extra // 2, extra - extra // 2)
        # The layer pads the two axes that it takes for height and width. In the other layout, one of them is
        # the axis of the channels. (``keras.ops.pad`` would make an operation without a name of ours.)
        last = self.data_format == "channels_last"
        padding = ((0, 0), added) if last else (added, (0, 0))
        swapped = "channels_first" if last else "channels_last"
        return self._apply(keras.layers.ZeroPadding2D, "pad", x, padding, data_format=swapped)

    def squeeze_excite(self, x):
        """Squeeze and excitation: multiply each channel by a factor that depends on all channels' averages.

        Hu et al., "Squeeze-and-Excitation Networks" (2017), arXiv:1709.01507: the averages over the image, a
        dense layer, ReLU, a second dense layer, sigmoid.
        """
        channels = self.channels(x)
        hidden = self.relu(self.dense(self.global_average(x), max(1, channels // REDUCTION)))
        factors = self.activation(self.dense(hidden, channels), "sigmoid")
        shape = (1, 1, channels) if self.data_format == "channels_last" else (channels, 1, 1)
        factors = self._apply(keras.layers.Reshape, "reshape", factors, shape)
        return self._apply(keras.layers.Multiply, "multiply", [x, factors])
