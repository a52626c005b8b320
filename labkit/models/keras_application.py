"""Networks of ``keras.applications``, for which weights trained on ImageNet are published.

Batch normalization is replaced by labkit's, because the training step must be able to synchronize it, freeze
it and average its statistics over the replicas. All other layers are Keras's. A layer's name is
``stage<n>_<Keras's name>``, where n counts how often the image has been halved.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import keras

from labkit.errors import InputError
from labkit.models.layer_factory import LayerFactory, placed

__all__ = ["bare_application", "default_keras_settings", "keras_application", "stage_name"]

SMALLEST = 32  # the smallest image side that keras.applications accepts for these networks
# Statistics of ImageNet for pixels from 0 to 1: keras.applications.imagenet_utils, mode "torch".
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TAKES_STANDARDIZED = ("DenseNet121",)  # the others expect pixels from -1 to 1 (mode "tf")


def keras_application(
    layers: LayerFactory, images, *, application: str, num_classes: int
) -> keras.KerasTensor:
    """Return the logits of a network of ``keras.applications``, float32 [batch, num_classes].

    Images standardized with any data set's statistics are treated like standardized images of ImageNet.

    Args:
        layers: makes the layers; it decides precision, normalization and seed. The network itself is channels
            last and keeps the epsilons of Keras.
        images: float [batch, height, width, 3], or channels first if the factory uses that layout.
        application: the network's name, one of ``labkit.config.architectures.APPLICATIONS``.
        num_classes: number of logits.

    Raises:
        InputError: the images are too small or don't have three channels.
    """
    x = images
    if layers.data_format == "channels_first":
        x = keras.layers.Permute((2, 3, 1), dtype="float32", name="channels_last")(x)
    image_shape = x.shape[1:]
    if min(image_shape[:2]) < SMALLEST or image_shape[2] != 3:
        raise InputError(
            f"--model keras_application needs images of {SMALLEST}x{SMALLEST} pixels or more and 3 channels, "
            f"not {'x'.join(map(str, image_shape))}; choose another --model"
        )
    if application not in TAKES_STANDARDIZED:
        x = keras.layers.Rescaling(
            [[[2 * std for std in IMAGENET_STD]]],  # of rank 3: Keras's settings decide the axis of a list
            [[[2 * mean - 1 for mean in IMAGENET_MEAN]]],
            dtype=layers.dtype,
            name="rescaling",
        )(x)
    network = bare_application(application, image_shape)
    outputs = []

    def call(layer: keras.Layer, *tensors: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        outputs.append(placed(layer, layer.name.replace("_", "/", 1))(*tensors))
        return outputs[-1]

    # The clone itself is not used: as a model within a model it would hide its layers. The tensors made on
    # the way belong to the network around it, and the last one is the clone's output.
    keras.models.clone_model(
        network,
        input_tensors=x,
        clone_function=lambda layer: _remade(layers, layer, image_shape),
        call_function=call,
    )
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(outputs[-1], data_format="channels_last"), num_classes)


def bare_application(
    application: str, image_shape: tuple[int, int, int], weights: str | None = None
) -> keras.Model:
    """Return Keras's own network without its head.

    Args:
        application: its name in ``keras.applications``.
        image_shape: height, width and channels.
        weights: ``imagenet``, which Keras downloads into its cache; None for random weights.
    """
    make = getattr(keras.applications, application)
    with default_keras_settings():
        return make(include_top=False, weights=weights, input_shape=image_shape)


@contextlib.contextmanager
def default_keras_settings() -> Iterator[None]:
    """Make networks of ``keras.applications``, which have no arguments for dtype and layout, in Keras's own.

    Another project may have set others, in ``keras.json`` or in this process; they are back after the block.
    """
    floatx, layout = keras.config.floatx(), keras.config.image_data_format()
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy("float32")
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_image_data_format(layout)
        keras.config.set_dtype_policy(policy)


def stage_name(layer: keras.Layer, image_shape: tuple[int, int, int]) -> str:
    """Return labkit's name for a layer of :func:`bare_application`."""
    halvings = round(math.log2(image_shape[0] / layer.output.shape[1]))
    return f"stage{halvings}_{layer.name}"


def _remade(layers: LayerFactory, layer: keras.Layer, image_shape: tuple[int, int, int]) -> keras.Layer:
    """Return a new layer like ``layer`` with the factory's precision, normalization and seeds."""
    name = stage_name(layer, image_shape)
    if isinstance(layer, keras.layers.BatchNormalization):
        return layers.norm_layer(name=name, epsilon=layer.epsilon, data_format="channels_last")
    values: dict[str, Any] = {**layer.get_config(), "name": name, "dtype": layers.dtype}
    for key, value in values.items():
        if key.endswith("_initializer") and "seed" in value.get("config", {}):
            values[key] = {**value, "config": {**value["config"], "seed": layers.next_seed()}}
    return type(layer).from_config(values)
