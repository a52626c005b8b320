"""Networks of ``keras.applications``, for which weights trained on ImageNet are published.

Batch normalization is replaced by labkit's, because the training step must be able to synchronize it, freeze
it and average its statistics over the replicas. All other layers are Keras's. A layer's name is
``stage<n>_<Keras's name>``, where n counts how often the image has been halved.

ImageNet's weights of ResNet and VGG also fit labkit's networks of the same architecture (``own_weights``).
The networks differ in four ways, none of which changes the logits (tests/models/test_imagenet.py): the names
of layers; biases of convolutions before a batch normalization, which labkit leaves out; the epsilon of the
normalization; and the images. Those of keras.applications ("caffe" mode) are blue, green, red with the mean
colour subtracted, from -124 to 151. labkit's are red, green, blue and standardized.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from labkit.errors import InputError
from labkit.models.layer_factory import LayerFactory, in_scope

SMALLEST = 32  # the smallest image side that keras.applications accepts for these networks
# Statistics of ImageNet for pixels from 0 to 1: keras.applications.imagenet_utils, mode "torch".
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
STANDARDIZED = "DenseNet"  # takes standardized images; the others pixels from -1 to 1 (mode "tf")


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
    if not application.startswith(STANDARDIZED):
        x = keras.layers.Rescaling(
            [[[2 * std for std in IMAGENET_STD]]],  # of rank 3: Keras's settings decide the axis of a list
            [[[2 * mean - 1 for mean in IMAGENET_MEAN]]],
            dtype=layers.dtype,
            name="rescaling",
        )(x)
    network = bare_application(application, image_shape)
    outputs = []

    def call(layer: keras.Layer, *tensors: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        outputs.append(in_scope(layer, layer.name.replace("_", "/", 1))(*tensors))
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


# ---- ImageNet's weights for labkit's own networks

PUBLISHED_SHAPE = (224, 224, 3)

# Names in Keras. The convolution that bridges a block (_0_) is the block's first in labkit; there is one in
# the first block of each stage.
_RESNET_BLOCK = re.compile(r"conv(\d)_block(\d+)_(\d)_(conv|bn)")
_RESNET_STEM = {"conv1_conv": "stem_conv1", "conv1_bn": "stem_norm1"}
_VGG_CONVOLUTION = re.compile(r"block(\d)_conv(\d)")
_VGG_DENSE = {"fc1": "stage6_dense1", "fc2": "stage6_dense2"}


def published_network(
    application: str, image_shape: tuple[int, int, int], weights: str | None = None
) -> keras.Model:
    """Return Keras's own network with the layers whose weights can be used.

    The dense layers of VGG, which fit images of 224x224 pixels, are read for these alone: their file has 528
    MB, the one without them 56 MB.

    Args:
        application: its name in ``keras.applications``.
        image_shape: height, width and channels of the images to be trained on.
        weights: ``imagenet``, which Keras downloads into its cache; None for random weights.
    """
    make: Any = getattr(keras.applications, application)
    has_dense = application.startswith("VGG") and image_shape == PUBLISHED_SHAPE
    with default_keras_settings():
        return make(include_top=has_dense, weights=weights, input_shape=PUBLISHED_SHAPE)


def own_weights(network: keras.Model, epsilon: float) -> dict[str, np.ndarray]:
    """Return the weights of a network of ``published_network`` by labkit's layer and weight names.

    Images standardized with any data set's statistics are treated like standardized images of ImageNet, as in
    ``keras_application``. A standardized 0 then is the mean colour, which is 0 for Keras's
    network, too. So it suffices to change the first kernel, and the zeros around the image stay right.

    Args:
        network: ResNet50, ResNet101, ResNet152, VGG16 or VGG19; the logits' layer, if any, is left out.
        epsilon: of labkit's batch normalization.
    """
    arrays: dict[str, np.ndarray] = {}
    first = None
    for layer in network.layers:
        name = own_name(layer.name)
        if name is None:
            continue
        first = first or f"{name}/kernel"
        if isinstance(layer, keras.layers.BatchNormalization):
            convolution = name.replace("_norm", "_conv")
            arrays |= _norm_weights(name, layer, epsilon, arrays.pop(f"{convolution}/bias"))
        else:
            arrays |= {f"{name}/{weight.name}": np.asarray(weight) for weight in layer.weights}
    assert first is not None
    to_pixels = 255.0 * np.asarray(IMAGENET_STD, np.float32)  # red, green, blue
    arrays[first] = arrays[first][:, :, ::-1] * to_pixels[:, None]
    return arrays


def own_name(name: str) -> str | None:
    """Return labkit's name for a layer in keras.applications; None if labkit has no such layer."""
    if found := _RESNET_BLOCK.fullmatch(name):
        stage, block, number = int(found[1]) - 1, int(found[2]), int(found[3])
        kind = "conv" if found[4] == "conv" else "norm"
        return f"stage{stage}_block{block}_{kind}{number + (block == 1)}"
    if found := _VGG_CONVOLUTION.fullmatch(name):
        return f"stage{found[1]}_conv{found[2]}"
    return (_RESNET_STEM | _VGG_DENSE).get(name)


def _norm_weights(name: str, layer: Any, epsilon: float, bias: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of a batch normalization after a convolution without its bias.

    Without the bias, the mean is lower by it.
    """
    gamma, variance = np.asarray(layer.gamma), np.asarray(layer.moving_variance)
    return {
        f"{name}/gamma": gamma_for_epsilon(gamma, variance, layer.epsilon, epsilon),
        f"{name}/beta": np.asarray(layer.beta),
        f"{name}/moving_mean": np.asarray(layer.moving_mean) - bias,
        f"{name}/moving_variance": variance,
    }


def gamma_for_epsilon(gamma: np.ndarray, variance: np.ndarray, theirs: float, ours: float) -> np.ndarray:
    """Return the gamma that makes up for another epsilon, so that the moving variance stays the images'."""
    precise = variance.astype(np.float64)
    return (gamma * np.sqrt((precise + ours) / (precise + theirs))).astype(np.float32)
