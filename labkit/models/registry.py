"""Build a Keras model from a model configuration."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import model_name
from labkit.models.brought import brought_model
from labkit.models.convnets import fast_net, imagenet_vgg, lenet, tutorial_cnn, vgg
from labkit.models.convnext import convnext
from labkit.models.keras_application import keras_application
from labkit.models.layer_factory import LayerFactory
from labkit.models.resnet import imagenet_resnet, imagenet_se_resnet, resnet, se_resnet, wide_resnet
from labkit.models.vit import vit


def _residual(config: ModelConfig) -> dict[str, Any]:
    return {"num_layers": config.depth, "version": config.resnet_version, "block": config.block}


def _depth(config: ModelConfig) -> dict[str, Any]:
    return {"num_layers": config.depth}


def _published(config: ModelConfig) -> dict[str, Any]:
    return {"num_layers": config.depth, "bottleneck_stride": config.bottleneck_stride}


# For each name in config.architectures: the function, and its arguments taken from the configuration.
BUILDERS: dict[str, tuple[Callable[..., Any], Callable[[ModelConfig], dict[str, Any]]]] = {
    "resnet": (resnet, _residual),
    "se_resnet": (se_resnet, _residual),
    "wide_resnet": (
        wide_resnet,
        lambda config: {"num_layers": config.depth, "width_factor": config.width_factor},
    ),
    "vgg": (vgg, _depth),
    "lenet": (lenet, lambda config: {}),
    "tutorial_cnn": (tutorial_cnn, lambda config: {}),
    "fast": (
        fast_net,
        lambda config: {
            "width_factor": config.width_factor,
            "whitening": config.whitening,
            "dirac": config.dirac,
            "activation": config.activation,
        },
    ),
    "vit": (vit, lambda config: {}),
    "convnext": (convnext, lambda config: {}),
    "imagenet_resnet": (imagenet_resnet, _published),
    "imagenet_se_resnet": (imagenet_se_resnet, _published),
    "imagenet_vgg": (imagenet_vgg, _depth),
    "keras_application": (keras_application, lambda config: {"application": config.application}),
}


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
    if config.model not in BUILDERS:
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
    network, values = BUILDERS[config.model]
    logits = network(layers, images, **values(config), num_classes=num_classes)
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
    return model if config.model in BUILDERS else _Weights(model)
