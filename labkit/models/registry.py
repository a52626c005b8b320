"""Build a Keras model from a model configuration."""

import functools
import pkgutil
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES, model_name
from labkit.models.brought import brought_model
from labkit.models.layer_factory import LayerFactory


def network_of(config: ModelConfig) -> Callable[..., Any]:
    """Return the function of a built-in architecture, with its arguments taken from the configuration.

    It takes a ``LayerFactory``, the images and ``num_classes``, and returns the logits.
    """
    architecture = ARCHITECTURES[config.model]
    values = {name: getattr(config, name) for name in architecture.takes}
    return functools.partial(pkgutil.resolve_name(architecture.network), **values)


def build_model(
    config: ModelConfig,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    data_format: str = "channels_last",
    seed: int = 0,
) -> keras.Model:
    """Return a functional model that maps images to logits. Call it inside ``strategy.scope()``.

    The model takes images float32 [batch, height, width, channels] with either ``data_format``; with
    ``channels_first`` it transposes them on its device. It returns logits [batch, num_classes] in float32, or
    float64 if that is the precision.

    Args:
        config: architecture, its size, precision and batch normalization.
        num_classes: number of logits.
        image_shape: (height, width, channels).
        data_format: layout of the activations, ``channels_last`` or ``channels_first``.
        seed: decides the initial weights.

    Raises:
        InputError: the architecture does not accept images of this shape.
    """
    if config.model not in ARCHITECTURES:
        return brought_model(config, num_classes, image_shape, data_format, seed)
    layers = LayerFactory(
        data_format=data_format,
        dtype=config.precision,
        seed=seed,
        batch_norm_decay=config.norm_decay,
        batch_norm_epsilon=config.batch_norm_epsilon,
        sync_batch_norm=config.sync_batch_norm,
        dropout_rate=config.dropout_rate,
    )
    inputs = keras.Input(image_shape, name="images", dtype="float32")
    # Checkpoints identify layers by number, and a checkpoint of one layout must load into the other; so both
    # layouts have a layer here. Every layer states its dtype: another project's Keras settings decide for one
    # that doesn't.
    is_first = data_format == "channels_first"
    layout: Any = keras.layers.Identity(dtype="float32")
    if is_first:
        layout = keras.layers.Permute((3, 1, 2), dtype="float32")
    images = layout(inputs)
    logits = network_of(config)(layers, images, num_classes=num_classes)
    return keras.Model(inputs, logits, name=model_name(config).replace("-", "_"))


class _Weights(tf.Module):
    """The weights of a network, by their numbers."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.all = [weight.value for weight in model.weights]


def in_checkpoints(config: ModelConfig, model: keras.Model) -> Any:
    """Return what checkpoints hold of a network: its layers or, where it is brought, the list of its weights.

    A class of one's own may keep layers where TensorFlow doesn't look for them, such as in a list.
    """
    return model if config.model in ARCHITECTURES else _Weights(model)
