"""Layers that the backbones share."""

import contextlib
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.startup.tf_compat import all_layers, switches

# Thread-local, because MirroredStrategy traces each replica in its own thread.
_THREAD = threading.local()


@contextlib.contextmanager
def _in_thread(**values: Any) -> Iterator[None]:
    """Let ``_of_thread`` return these values to the layers that this thread calls in the block."""
    outer = {name: _of_thread(name) for name in values}
    vars(_THREAD).update(values)
    try:
        yield
    finally:
        vars(_THREAD).update(outer)


def _of_thread(name: str) -> Any:
    return getattr(_THREAD, name, None)


@contextlib.contextmanager
def recorded_batch_statistics(
    frozen: Collection["BatchNormalization"] = (),
) -> Iterator[list[tuple["BatchNormalization", tf.Tensor, tf.Tensor]]]:
    """Collect (layer, mean, variance) from every batch normalization called for training in the block.

    Layers in ``frozen`` normalize by their moving averages, as in inference, and record nothing.
    """
    statistics: list[tuple[BatchNormalization, tf.Tensor, tf.Tensor]] = []
    with _in_thread(statistics=statistics, frozen=frozenset(map(id, frozen))):
        yield statistics


def is_recorded() -> bool:
    """Return whether this thread is in a block of ``recorded_batch_statistics``, as a training step is."""
    return _of_thread("statistics") is not None


def _lacks_gradient() -> bool:
    """Return whether TensorFlow refuses the gradient of the fused kernel with given statistics, as on GPUs.

    It does so in deterministic trainings only. Predictions need no gradient.
    """
    return is_recorded() and switches()[0] and bool(tf.config.list_logical_devices("GPU"))


def shifting_only(offsets: Mapping["BatchNormalization", tf.Tensor]) -> AbstractContextManager[None]:
    """Make the given layers only add their offset [channels] when called for prediction in the block.

    For inputs that are already scaled (``labkit.models.variants``).
    """
    return _in_thread(offsets={id(layer): offset for layer, offset in offsets.items()})


@keras.saving.register_keras_serializable(package="labkit")
class BatchNormalization(keras.layers.Layer):
    """Batch normalization with TensorFlow's fused kernel (Ioffe & Szegedy, 2015).

    Keras's layer computes the moments with separate operations; ``benchmarks/train_step.py`` measures the
    difference. In training, this layer does not update its moving averages but passes the batch's statistics
    to ``recorded_batch_statistics``. The training step combines them over the replicas in one reduction, so
    the moving averages are equal on every replica.

    Args:
        data_format: ``channels_last`` ([batch, height, width, channels]) or ``channels_first``.
        decay: fraction of the old moving average that each update keeps.
        epsilon: added to the variance.
        synchronized: whether to compute the statistics over the batches of all replicas. With one replica the
            fused kernel is used anyway; with several, the moments are reduced over the replicas.
        scale: whether gamma is trained; otherwise it stays 1.

    Call arguments: ``inputs``, a float tensor, ``training``, and ``mask``, which Keras hands on and which has
    no effect. Returns a tensor of the same shape and dtype. Inputs of other ranks than 4 have their channels
    last.
    """

    def __init__(
        self,
        data_format: str = "channels_last",
        decay: float = 0.997,
        epsilon: float = 1e-5,
        synchronized: bool = False,
        scale: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.data_format = data_format
        self.decay = decay
        self.epsilon = epsilon
        self.synchronized = synchronized
        self.scale = scale

    def build(self, input_shape):
        channels = (input_shape[-1 if self.data_format == "channels_last" else 1],)

        def weight(name: str, initializer: str, trainable: bool):
            return self.add_weight(
                shape=channels,
                name=name,
                initializer=initializer,
                trainable=trainable,
                dtype="float64" if self.compute_dtype == "float64" else "float32",
                autocast=False,
            )

        self.gamma = weight("gamma", "ones", self.scale)
        self.beta = weight("beta", "zeros", True)
        self.moving_mean = weight("moving_mean", "zeros", False)
        self.moving_variance = weight("moving_variance", "ones", False)

    def call(self, inputs, training=False, mask=None):
        if len(inputs.shape) != 4:  # such as the features of a dense layer
            values = tf.reshape(inputs, [-1, 1, 1, inputs.shape[-1]])
            return tf.reshape(self.call(values, training), tf.shape(inputs))
        offset = None if training else (_of_thread("offsets") or {}).get(id(self))
        if offset is not None:
            return tf.nn.bias_add(inputs, tf.cast(offset, inputs.dtype), self._layout)
        is_double = self.compute_dtype == "float64"  # there is no fused kernel for it
        training = training and self.trainable
        if not training or id(self) in (_of_thread("frozen") or ()):
            if is_double or _lacks_gradient():
                moving = map(tf.convert_to_tensor, (self.moving_mean, self.moving_variance))
                return self._affine(inputs, *moving)
            return self._fused(inputs, self.moving_mean, self.moving_variance, training=False)[0]
        synchronizes = self.synchronized and tf.distribute.get_strategy().num_replicas_in_sync > 1
        if synchronizes or is_double:
            mean, variance, count = self._moments(inputs, synchronizes)
            # The moving average keeps the unbiased variance, as the fused kernel does.
            self._record(mean, variance * count / tf.maximum(count - 1.0, 1.0))
            return self._affine(inputs, mean, variance)
        outputs, mean, variance = self._fused(inputs, None, None, training=True)
        self._record(mean, variance)
        return outputs

    def _record(self, mean, variance) -> None:
        if is_recorded():
            _of_thread("statistics").append((self, mean, variance))

    def _fused(self, inputs, mean, variance, training: bool):
        return tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(self.gamma),
            tf.convert_to_tensor(self.beta),
            mean=None if mean is None else tf.convert_to_tensor(mean),
            variance=None if variance is None else tf.convert_to_tensor(variance),
            epsilon=self.epsilon,
            data_format=self._layout,
            is_training=training,
        )

    @property
    def _layout(self) -> str:
        return "NHWC" if self.data_format == "channels_last" else "NCHW"

    def _moments(self, inputs, synchronizes: bool):
        """Return mean and variance [channels] of the batch, and the number of values per channel.

        The variance of the global batch is the mean of the replicas' variances plus the variance of their
        means (Chan, Golub & LeVeque, 1983), which takes one reduction. The mean of the squares minus the
        square of the mean would have an error of 0.4 % in float32 if the mean is 30 standard deviations; the
        fused kernel has no such error. For the same reason the moving mean, which is close to the means and
        equal on all replicas, is subtracted from them first.
        """
        axes = [0, 1, 2] if self.data_format == "channels_last" else [0, 2, 3]
        values = tf.cast(inputs, self.gamma.dtype)
        mean, variance = tf.nn.moments(values, axes)
        count = tf.cast(tf.size(values) // tf.size(mean), values.dtype)
        if not synchronizes:
            return mean, variance, count
        context = tf.distribute.get_replica_context()
        shift = tf.stop_gradient(tf.convert_to_tensor(self.moving_mean))
        shifted = mean - shift
        shifted, squared, variance = tf.unstack(
            context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.stack([shifted, tf.square(shifted), variance]))
        )
        variance += tf.maximum(squared - tf.square(shifted), 0.0)
        return shifted + shift, variance, count * context.num_replicas_in_sync

    def _affine(self, inputs, mean, variance):
        """Return ``inputs`` normalized by mean and variance [channels], without the fused kernel."""
        shape = [1, 1, 1, -1] if self.data_format == "channels_last" else [1, -1, 1, 1]
        scale = tf.math.rsqrt(variance + self.epsilon) * tf.convert_to_tensor(self.gamma)
        offset = tf.convert_to_tensor(self.beta) - mean * scale
        outputs = tf.cast(inputs, scale.dtype) * tf.reshape(scale, shape) + tf.reshape(offset, shape)
        return tf.cast(outputs, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=False, mask=None):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def get_config(self):
        names = ("data_format", "decay", "epsilon", "synchronized", "scale")
        return super().get_config() | {name: getattr(self, name) for name in names}


def norms_of(model: keras.Layer) -> dict[str, BatchNormalization]:
    """Return the batch normalizations of a model by name, those inside of other layers included.

    Of several with one name, which only layers inside of others may have, the later ones get a number.
    """
    found: dict[str, BatchNormalization] = {}
    for layer in all_layers(model):
        if isinstance(layer, BatchNormalization):
            same = sum(layer.name == other.name for other in found.values())
            found[f"{layer.name}#{same + 1}" if same else layer.name] = layer
    return found


def statistics_of(
    model: keras.Model, recorded: Iterable[tuple[BatchNormalization, tf.Tensor, tf.Tensor]]
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Return mean and variance [channels] by the names of ``norms_of``, in the order of the records."""
    names = {id(layer): name for name, layer in norms_of(model).items()}
    return {names[id(layer)]: (mean, variance) for layer, mean, variance in recorded}


@keras.saving.register_keras_serializable(package="labkit")
class LocalResponseNormalization(keras.layers.Layer):
    """Local response normalization (Krizhevsky et al., "ImageNet Classification ...", 2012, section 3.3).

    Computes x / (bias + alpha * sum of the squares of the 2 * depth_radius + 1 nearest channels) ** beta. The
    sum is a product with a band matrix, which works in every precision and both layouts. ``tf.nn.lrn`` is
    slower and supports only float32 and channels last.

    Args:
        depth_radius: number of channels to include on each side.
        bias, alpha, beta: see the formula.
        data_format: ``channels_last`` ([batch, height, width, channels]) or ``channels_first``.

    Call argument: ``inputs``, a float tensor of rank 4. Returns a tensor of the same shape and dtype. The
    computation is in float32 or float64.
    """

    def __init__(
        self,
        depth_radius: int,
        bias: float,
        alpha: float,
        beta: float,
        data_format: str = "channels_last",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.depth_radius = depth_radius
        self.bias = bias
        self.alpha = alpha
        self.beta = beta
        self.data_format = data_format

    def call(self, inputs):
        is_last = self.data_format == "channels_last"
        channels = inputs.shape[-1 if is_last else 1]
        values = keras.ops.cast(inputs, "float64" if self.compute_dtype == "float64" else "float32")
        squares = keras.ops.square(values)
        index = np.arange(channels)
        near = np.abs(index[:, None] - index) <= self.depth_radius
        band = keras.ops.convert_to_tensor(near, dtype=values.dtype)
        if is_last:
            sums = keras.ops.matmul(squares, band)
        else:
            rows = keras.ops.reshape(squares, (-1, channels, squares.shape[2] * squares.shape[3]))
            sums = keras.ops.reshape(keras.ops.matmul(band, rows), (-1, *squares.shape[1:]))
        divisor = self.bias + self.alpha * sums
        if self.beta == 0.75:  # two square roots are much faster than a power
            root = keras.ops.rsqrt(divisor)
            factor = root * keras.ops.sqrt(root)
        else:
            factor = keras.ops.power(divisor, -self.beta)
        return keras.ops.cast(values * factor, inputs.dtype)

    def get_config(self):
        names = ("depth_radius", "bias", "alpha", "beta", "data_format")
        return super().get_config() | {name: getattr(self, name) for name in names}


def dropout_draws(step: Any, first: Any, global_batch_size: int) -> AbstractContextManager[None]:
    """Say which masks the ``Dropout`` layers draw that are called for training in the block.

    Args:
        step: steps completed before this one, int64 scalar.
        first: position of the first image of the replica's slice in the global batch, integer scalar.
        global_batch_size: examples in the step, over all replicas.
    """
    return _in_thread(draws=(step, first, global_batch_size, Counter[int]()))


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

    Call arguments: ``inputs``, float [batch, …], and ``training``. Returns a tensor of the same shape and
    dtype. Outside of ``dropout_draws``, nothing is dropped in training either.
    """

    noise_shape: tuple[int | None, ...] | None = None  # of Keras's layer: 1 where values share a mask

    def __init__(self, rate: float, seed: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate, self.seed = rate, seed

    def call(self, inputs, training=False):
        draws = _of_thread("draws")
        if not training or draws is None or not self.rate:
            return inputs
        step, first, global_batch_size, calls = draws
        given = self.noise_shape or (None,) * len(inputs.shape)
        shape = [size if one is None else one for size, one in zip(inputs.shape, given, strict=True)][1:]
        seed = tf.stack([self.seed + calls[id(self)] * 2**31, tf.cast(step, tf.int64)])
        calls[id(self)] += 1  # a layer that is called twice draws other masks the second time
        # Named, so that XLA and GPUs draw the same numbers as the CPU.
        masks = 1 if given[0] == 1 else global_batch_size
        mine = tf.random.stateless_uniform([masks, *shape], seed, alg="philox")
        if given[0] != 1:
            begin = [tf.cast(first, tf.int32), *(0 for _ in shape)]
            mine = tf.slice(mine, begin, [tf.shape(inputs)[0], *shape])
        kept = tf.cast(mine >= self.rate, inputs.dtype)
        return inputs * kept * tf.cast(1.0 / (1.0 - self.rate), inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"rate": self.rate, "seed": self.seed}
