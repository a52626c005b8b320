"""A convolution whose filters' gradient is fast on a CPU, for many channels on few pixels."""

import itertools

import keras
import tensorflow as tf

from labkit.models.layers import is_recorded

__all__ = ["Conv2D", "filter_gradient"]

# Where oneDNN's gradient is slower than matrix products (``python -m benchmarks filters``): from so many
# channels on both sides, and up to so many pixels.
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
            and all(size % 2 for size in self.kernel_size)
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
    moved = itertools.product(rows, columns)
    products = [
        _product(images[:, down[0], right[0]], upstream[:, down[1], right[1]]) for down, right in moved
    ]
    return tf.reshape(tf.stack(products), [*size, *products[0].shape])


def _overlap(shift: int, length: int) -> tuple[slice, slice]:
    """Return which of ``length`` pixels a weight sees, moved by ``shift``, and for which outputs it does."""
    first, last = max(0, shift), max(0, length + min(0, shift))
    return slice(first, last), slice(first - shift, last - shift) if first < last else slice(0, 0)


def _product(images: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    seen, wanted = (tf.reshape(values, [-1, values.shape[-1]]) for values in (images, upstream))
    return tf.matmul(seen, wanted, transpose_a=True)
