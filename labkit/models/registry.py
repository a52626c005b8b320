"""From a model configuration to a Keras model."""

from collections.abc import Callable

import keras

from labkit.config import ModelConfig
from labkit.models.resnet import resnet
from labkit.models.toolbox import Toolbox

__all__ = ["build_model", "model_name"]


def _resnet(toolbox: Toolbox, images, config: ModelConfig, num_classes: int):
    return resnet(
        toolbox,
        images,
        num_layers=config.num_layers,
        version=config.resnet_version,
        block=config.block,
        num_classes=num_classes,
    )


ARCHITECTURES: dict[str, Callable] = {"resnet": _resnet}


def model_name(config: ModelConfig) -> str:
    """Return a short name such as ``resnet20``, ``resnet164-v2-bottleneck``."""
    version = "" if config.resnet_version == 1 else f"-v{config.resnet_version}"
    block = "" if config.block == "basic" else f"-{config.block}"
    return f"{config.model}{config.num_layers}{version}{block}"


def build_model(
    config: ModelConfig,
    *,
    num_classes: int,
    image_shape: tuple[int, int, int],
    data_format: str = "channels_last",
    seed: int = 0,
) -> keras.Model:
    """Return a functional model: images float32 [batch, height, width, channels] to logits [batch, classes].

    Images are channels last whatever ``data_format`` is; the model transposes them on its device.
    Call it inside ``strategy.scope()``.
    """
    toolbox = Toolbox(
        data_format=data_format,
        dtype=config.precision,
        seed=seed,
        batch_norm_decay=config.batch_norm_decay,
        batch_norm_epsilon=config.batch_norm_epsilon,
        sync_batch_norm=config.sync_batch_norm,
    )
    inputs = keras.Input(image_shape, name="images", dtype="float32")
    images = inputs if data_format == "channels_last" else keras.layers.Permute((3, 1, 2))(inputs)
    logits = ARCHITECTURES[config.model](toolbox, images, config, num_classes)
    return keras.Model(inputs, logits, name=model_name(config).replace("-", "_"))
