"""Progressive resizing: a run begins with smaller images, which cost less.

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
    """Raise InputError where the network can't take images of one of the sizes.

    Args:
        stages: (side in pixels, share of the run up to which it holds), as in ``DataConfig.image_sizes``.
        model: the network.
    """
    for size, _ in stages:
        try:
            with_image_size(model, size)
        except ValueError as error:
            reason = textwrap.shorten(str(error).splitlines()[0], 120, placeholder=" …")
            raise InputError(
                f"--progressive-resizing has images of {size} pixels, which {model.name} can't take "
                f"({reason}); name larger ones, or leave it out"
            ) from None


def with_image_size(model: keras.Model, size: int, call: Callable[..., Any] | None = None) -> keras.Model:
    """Return a model for images of ``size`` x ``size`` made of the very layers of ``model``.

    ``call``: calls each layer with its inputs; None: as it is. Raises ValueError where a layer has weights
    for one size alone.
    """
    channels = model.input_shape[-1]
    images = keras.Input((size, size, channels), name="images", dtype=model.inputs[0].dtype)
    return keras.models.clone_model(
        model, input_tensors=images, clone_function=lambda layer: layer, call_function=call
    )


def output_shapes(model: keras.Model, size: int) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each layer's output, by the layer's name, for images of ``size`` x ``size``.

    The layers themselves know only that of the size which they were first called with.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}

    def call(layer: keras.Operation, *inputs: Any, **options: Any) -> Any:
        output = layer(*inputs, **options)
        shapes[layer.name] = tuple(output.shape)
        return output

    with_image_size(model, size, call)
    return shapes


def shrunk(images: tf.Tensor, size: int) -> tf.Tensor:
    """Return images of ``size`` x ``size``: bilinear, over all pixels that a new one covers.

    As ``tf.image.resize(..., antialias=True)``, but by two matrix products, which every device has.

    Args:
        images: floating [batch, height, width, channels], static height and width.
    """
    down, across = (tf.cast(_weights(images.shape[axis], size), images.dtype) for axis in (1, 2))
    return tf.einsum("ph,bhwc,qw->bpqc", down, images, across)


def _weights(before: int, after: int) -> tf.Tensor:
    """Return float32 [after, before]: how much of each pixel of a row is in each new one."""
    with tf.init_scope():  # a constant, made once
        pixels = tf.eye(before)[:, :, None]
        return tf.image.resize(pixels, [after, before], antialias=True)[:, :, 0].numpy()
