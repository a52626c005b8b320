"""Convolutions: a fast gradient of the filters, whitening of images, initialization to the identity."""

import keras
import numpy as np
import tensorflow as tf

from labkit.models.layers import is_recorded

# Where oneDNN's gradient is slower than matrix products (``python -m benchmarks filters``): with 3x3 filters,
# from so many channels on both sides, and up to so many pixels.
CHANNELS = 256
PIXELS = {"bfloat16": 8 * 8, "float32": 4 * 4}


@keras.saving.register_keras_serializable(package="labkit")
class Conv2D(keras.layers.Conv2D):
    """Keras's layer, which in a training step on a CPU may compute its filters' gradient in another way.

    The result is the same but for rounding. Arguments are those of ``keras.layers.Conv2D``.
    """

    def convolution_op(self, inputs, kernel):
        if is_recorded() and self._by_products(inputs):
            return _convolution(inputs, tf.convert_to_tensor(kernel))
        return super().convolution_op(inputs, kernel)

    def _by_products(self, inputs) -> bool:
        _, height, width, channels = inputs.shape
        return (
            (self.data_format, self.padding, self.groups) == ("channels_last", "same", 1)
            and {*self.strides, *self.dilation_rate} == {1}
            and self.kernel_size == (3, 3)
            and min(channels, self.filters) >= CHANNELS
            and None not in (height, width)
            and height * width <= PIXELS.get(self.compute_dtype, 0)
            and not tf.config.list_logical_devices("GPU")
        )


@tf.custom_gradient
def _convolution(images, kernel):
    def gradients(upstream):
        of_images = tf.nn.conv2d_transpose(upstream, kernel, tf.shape(images), 1, "SAME")
        return of_images, filter_gradient(images, upstream, kernel.shape[:2])

    return tf.nn.conv2d(images, kernel, 1, "SAME"), gradients


def filter_gradient(images: tf.Tensor, upstream: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Return the gradient of the filters of a convolution with padding, by a matrix product for each weight.

    Each weight of a filter sees the images moved by some pixels. A product over all pixels that are still
    inside gives its gradient for all channels.

    Args:
        images: float [batch, height, width, in_channels], of static height and width.
        upstream: the gradient of the convolution's output, [batch, height, width, out_channels].
        size: odd height and width of a filter.

    Returns:
        [*size, in_channels, out_channels] of the images' dtype.
    """
    rows, columns = (
        [_overlap(position - extent // 2, images.shape[axis]) for position in range(extent)]
        for axis, extent in enumerate(size, start=1)
    )
    # With the rows of pixels first, some rows of all images are a part without gaps, which needs no copy.
    images, upstream = (tf.transpose(values, [1, 0, 2, 3]) for values in (images, upstream))
    moved = [(images[:, :, right[0]], upstream[:, :, right[1]]) for right in columns]
    products = [_product(seen[down[0]], wanted[down[1]]) for down in rows for seen, wanted in moved]
    return tf.reshape(tf.stack(products), [*size, *products[0].shape])


def _overlap(shift: int, length: int) -> tuple[slice, slice]:
    """Return which of ``length`` pixels a weight sees, moved by ``shift``, and for which outputs it does."""
    first, last = max(0, shift), max(0, length + min(0, shift))
    return slice(first, last), slice(first - shift, last - shift) if first < last else slice(0, 0)


def _product(images: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Return the product over all pixels [rows, batch, columns, channels], as a sum of two.

    Two of half the length take 0.8 of the time on two threads.
    """
    halves = 2 if images.shape[1] is not None and images.shape[1] % 2 == 0 else 1
    seen, wanted = (tf.reshape(values, [halves, -1, values.shape[-1]]) for values in (images, upstream))
    return tf.reduce_sum(tf.matmul(seen, wanted, transpose_a=True), axis=0)


def whitening_kernel(images: np.ndarray, patch_size: int, epsilon: float) -> np.ndarray:
    """Return a kernel whose outputs over the patches of ``images`` are uncorrelated and have variance 1.

    The filters are the eigenvectors of the patches' covariance, divided by the square roots of their
    eigenvalues (Page, "How to Train Your ResNet 8", 2019). Each filter is repeated with the opposite sign,
    because the activation after it passes mostly one sign (Jordan, "94% on CIFAR-10 in 3.29 Seconds", 2024,
    arXiv:2404.00498, section 3.2).

    Args:
        images: float [n, height, width, channels].
        patch_size: height and width of a patch.
        epsilon: added to the eigenvalues, so that directions without variance are not amplified.

    Returns:
        float32 [patch_size, patch_size, channels, 2 * patch_size**2 * channels], ordered by decreasing
        eigenvalue.
    """
    windows = np.lib.stride_tricks.sliding_window_view(images, (patch_size, patch_size), axis=(1, 2))
    # [n, rows, columns, channels, patch, patch] -> one row per patch, in the order of a kernel's weights.
    patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, patch_size**2 * images.shape[3])
    patches = patches.astype(np.float64)
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    # The sign of an eigenvector is arbitrary. Fix it, or it would depend on the linear algebra library.
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(len(values))])
    filters = (vectors / np.sqrt(values + epsilon))[:, ::-1]
    filters = np.concatenate([filters, -filters], axis=1)
    return filters.reshape(patch_size, patch_size, images.shape[3], -1).astype(np.float32)


@keras.saving.register_keras_serializable(package="labkit")
class Whitening(keras.layers.Conv2D):
    """Convolution without padding or bias, with a frozen kernel computed by :meth:`adapt`.

    airbench trains a bias for three of its eight epochs. Without it, a training step needs no gradient of the
    largest activations and of the next convolution's inputs, which saves a twentieth of its time.

    Args:
        filters: twice the number of values in a patch.
        patch_size: height and width of a patch.
        epsilon: see :func:`whitening_kernel`; airbench uses 5e-4.
        **kwargs: further arguments of ``keras.layers.Conv2D``.
    """

    def __init__(self, filters: int, patch_size: int = 2, epsilon: float = 5e-4, **kwargs) -> None:
        for fixed in ("kernel_size", "padding", "strides", "dilation_rate", "groups", "use_bias"):
            kwargs.pop(fixed, None)  # the configuration of a saved layer contains them
        super().__init__(filters, patch_size, padding="valid", use_bias=False, **kwargs)
        self.patch_size, self.epsilon = patch_size, epsilon

    def build(self, input_shape) -> None:
        super().build(input_shape)
        self._kernel.trainable = False

    def adapt(self, images: np.ndarray) -> None:
        """Compute the kernel from ``images``, float [n, height, width, channels], standardized."""
        self.kernel.assign(whitening_kernel(images, self.patch_size, self.epsilon))

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="labkit")
class Dirac(keras.initializers.Initializer):
    """Initialize a convolution so that its first filters each copy one input channel.

    Filter i, for i below the number of input channels, is 1 at the centre of channel i and 0 elsewhere. The
    remaining filters are initialized by ``other`` (Zagoruyko & Komodakis, "DiracNets", 2017,
    arXiv:1706.00388; in this form from airbench, arXiv:2404.00498, section 3.3).

    Args:
        other: the initializer of the remaining filters.
    """

    def __init__(self, other: keras.initializers.Initializer) -> None:
        self.other = keras.initializers.get(other)

    def __call__(self, shape, dtype=None):
        """Return weights of ``shape``, [height, width, input channels, filters]."""
        height, width, channels, filters = shape
        copied = min(channels, filters)
        identity = np.zeros((height, width, channels, copied), np.float32)
        identity[height // 2, width // 2, range(copied), range(copied)] = 1.0
        rest = self.other(shape, dtype=dtype)[..., copied:]
        return keras.ops.concatenate([keras.ops.cast(identity, dtype), rest], axis=-1)

    def get_config(self):
        return {"other": keras.saving.serialize_keras_object(self.other)}
