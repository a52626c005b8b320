"""Progressive resizing: train with smaller, cheaper images at the beginning of a run.

Howard, "Training Imagenet in 3 hours for USD 25; and CIFAR10 for USD 0.26" (2018), https://www.fast.ai/posts/
2018-04-30-dawnbench-fastai.html; Tan & Le, "EfficientNetV2" (2021), arXiv:2104.00298, section 4.
"""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.errors import InputError

__all__ = ["check_image_sizes", "output_shapes", "shrunk", "with_image_size"]

Stages = Sequence[tuple[int, float]]


def check_image_sizes(stages: Stages, model: keras.Model) -> None:
    """Check that the network accepts images of every size.

    Args:
        stages: (side in pixels, fraction of the run at which it ends), as in ``DataConfig.image_sizes``.
        model: the network.

    Raises:
        InputError: the network does not accept one of the sizes.
    """
    for size, _ in stages:
        try:
            with_image_size(model, size)
        except ValueError as error:
            reason = textwrap.shorten(str(error).splitlines()[0], 120, placeholder=" …")
            raise InputError(
                f"--progressive-resizing has images of {size} pixels, which {model.name} can't take "
                f"({reason}); give larger sizes, or leave it out"
            ) from None


def with_image_size(model: keras.Model, size: int, call: Callable[..., Any] | None = None) -> keras.Model:
    """Return a model for images of ``size`` x ``size`` that shares its layers with ``model``.

    Args:
        model: maps images [batch, height, width, channels] to logits.
        size: side of the images in pixels.
        call: used to call each layer, as ``call(layer, *inputs, **options)``; None calls it directly.

    Raises:
        ValueError: a layer has weights that fit only one size.
    """
    channels = model.input_shape[-1]
    images = keras.Input((size, size, channels), name="images", dtype=model.inputs[0].dtype)
    return keras.models.clone_model(
        model, input_tensors=images, clone_function=lambda layer: layer, call_function=call
    )


def output_shapes(model: keras.Model, size: int) -> dict[str, tuple[int | None, ...]]:
    """Return each layer's output shape, by layer name, for images of ``size`` x ``size``.

    A layer itself only records the output shape of its first call.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}

    def call(layer: keras.Operation, *inputs: Any, **options: Any) -> Any:
        output = layer(*inputs, **options)
        shapes[layer.name] = tuple(output.shape)
        return output

    with_image_size(model, size, call)
    return shapes


def shrunk(images: tf.Tensor, size: int) -> tf.Tensor:
    """Return the images reduced to ``size`` x ``size`` by antialiased bilinear interpolation.

    Equals ``tf.image.resize(..., antialias=True)``, but uses two matrix products, which run on every device.

    Args:
        images: float [batch, height, width, channels] with static height and width.
        size: the new side in pixels.

    Returns:
        [batch, size, size, channels] of the images' dtype.
    """
    down, across = (tf.cast(_weights(images.shape[axis], size), images.dtype) for axis in (1, 2))
    return tf.einsum("ph,bhwc,qw->bpqc", down, images, across)


def _weights(before: int, after: int) -> tf.Tensor:
    """Return the weight of each old pixel of a row in each new pixel, float32 [after, before]."""
    with tf.init_scope():  # computed once, as a constant of the graph
        pixels = tf.eye(before)[:, :, None]
        return tf.image.resize(pixels, [after, before], antialias=True)[:, :, 0].numpy()
