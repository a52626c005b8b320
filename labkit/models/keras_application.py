"""Networks of ``keras.applications``, for which weights trained on ImageNet are published.

They are made again layer by layer. Batch normalization is replaced by labkit's, because the training step
must be able to synchronize it, freeze it and average its statistics over the replicas; so is dropout, whose
masks then follow from the seed and the step. All other layers are Keras's, except those that prepare pixels.
A layer's name is ``stage<n>_<Keras's name>``, where n counts how often the image has been halved.

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

from labkit.config.architectures import smallest_side
from labkit.errors import InputError
from labkit.models.layer_factory import LayerFactory, in_scope
from labkit.startup.tf_compat import names_from_the_beginning

# Statistics of ImageNet for pixels from 0 to 1: keras.applications.imagenet_utils, mode "torch".
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# These take standardized images; the others pixels from -1 to 1 (mode "tf").
STANDARDIZED = ("DenseNet", "EfficientNetB", "EfficientNetV2B", "ConvNeXt")
PREPARES_PIXELS = (keras.layers.Rescaling, keras.layers.Normalization)
LAYER_SCALE = "LayerScale"  # a class of ConvNeXt's file, whose weight has no name


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
    image_shape, smallest = x.shape[1:], smallest_side(application)
    if min(image_shape[:2]) < smallest or image_shape[2] != 3:
        raise InputError(
            f"--model keras_application with {application} needs images of {smallest}x{smallest} pixels or "
            f"more and 3 channels, not {'x'.join(map(str, image_shape))}; choose another --model"
        )
    if not application.startswith(STANDARDIZED):
        white = 255 / 128 if application.startswith("EfficientNetV2") else 2.0  # above black
        x = keras.layers.Rescaling(
            # Of rank 3: Keras's settings decide the axis of a list.
            [[[white * std for std in IMAGENET_STD]]],
            [[[white * mean - 1 for mean in IMAGENET_MEAN]]],
            dtype=layers.dtype,
            name="rescaling",
        )(x)
    network = bare_application(application, image_shape)
    names, outputs = stage_names(network), []

    def call(layer: Any, *tensors: Any, **options: Any) -> Any:
        if isinstance(layer, keras.Sequential):
            for inner in layer.layers:
                tensors = (call(inner, *tensors),)
        elif type(layer).__name__ == LAYER_SCALE:
            tensors = (layers.layer_scale(tensors[0], layer.init_values, name=names[layer.name]),)
        elif not isinstance(layer, PREPARES_PIXELS):
            name = names[layer.name]
            tensors = (in_scope(_remade(layers, layer, name), name.replace("_", "/", 1))(*tensors),)
        outputs.append(tensors[0])
        return tensors[0]

    # The clone itself is not used: as a model within a model it would hide its layers. The tensors made on
    # the way belong to the network around it, and the last one is the clone's output.
    keras.models.clone_model(network, input_tensors=x, clone_function=lambda layer: layer, call_function=call)
    with layers.name_scope("head"):
        return layers.logits(outputs[-1], num_classes)


def bare_application(
    application: str, image_shape: tuple[int, int, int], weights: str | None = None
) -> keras.Model:
    """Return Keras's own network without its head: its features are averaged over height and width.

    Args:
        application: its name in ``keras.applications``.
        image_shape: height, width and channels.
        weights: ``imagenet``, which Keras downloads into its cache; None for random weights.
    """
    make = getattr(keras.applications, application)
    with keras_settings(), names_from_the_beginning():
        return make(include_top=False, weights=weights, input_shape=image_shape, pooling="avg")


@contextlib.contextmanager
def keras_settings(precision: str = "float32") -> Iterator[None]:
    """Let Keras make layers of a precision, channels last, where they have no arguments for that.

    Other values, from ``keras.json`` or another project in this process, are back after the block.
    """
    floatx, layout = keras.config.floatx(), keras.config.image_data_format()
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_floatx("float64" if precision == "float64" else "float32")
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy(precision)
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_image_data_format(layout)
        keras.config.set_dtype_policy(policy)


def stage_names(network: keras.Model) -> dict[str, str]:
    """Return labkit's name for each layer of :func:`bare_application`, by Keras's.

    A layer that sees averages over the image only, as in squeeze and excitation, is in the stage before it.
    """
    averages: set[int] = set()
    names: dict[str, str] = {}
    stage = 0
    for layer in network.operations:
        seen = {id(tensor) for tensor in keras.tree.flatten(layer.input)}
        if isinstance(layer, keras.layers.GlobalAveragePooling2D) or (seen and seen <= averages):
            averages.add(id(layer.output))
        else:
            stage = round(math.log2(network.input.shape[1] / layer.output.shape[1]))
        names |= {one.name: f"stage{stage}_{one.name}" for one in _flat(layer)}
    return names


def _flat(layer: Any) -> list[Any]:
    return layer.layers if isinstance(layer, keras.Sequential) else [layer]


def _weight_name(layer: Any, weight: Any) -> str:
    return "kernel" if type(layer).__name__ == LAYER_SCALE else weight.name


def application_weights(application: str, network: keras.Model) -> dict[str, np.ndarray]:
    """Return the weights of a network of ``bare_application`` by labkit's layer and weight names.

    EfficientNet takes the statistics of pixels from the file of weights. How large they make standardized
    images becomes part of the first kernel.
    """
    names = stage_names(network)
    arrays = {
        f"{names[layer.name]}/{_weight_name(layer, weight)}": np.asarray(weight)
        for outer in network.layers
        for layer in _flat(outer)
        if not isinstance(layer, PREPARES_PIXELS)
        for weight in layer.weights
    }
    if application.startswith("EfficientNetB"):
        padding = network.get_layer("stem_conv_pad")
        pixels = 255 * np.cumsum([IMAGENET_MEAN, IMAGENET_STD], axis=0)[:, None, None]
        images = np.broadcast_to(pixels, (2, *network.input.shape[1:])).astype(np.float32)
        dark, bright = np.asarray(keras.Model(network.input, padding.input)(images))[:, 0, 0]
        arrays[f"{names['stem_conv']}/kernel"] *= (bright - dark)[:, None]
    return arrays


def _remade(layers: LayerFactory, layer: Any, name: str) -> Any:
    """Return a new layer like ``layer`` with the factory's precision, normalization, dropout and seeds."""
    if isinstance(layer, keras.layers.BatchNormalization):
        return layers.norm_layer(
            name=name, scale=layer.scale, epsilon=layer.epsilon, data_format="channels_last"
        )
    if isinstance(layer, keras.layers.Dropout):
        dropout = layers.dropout_layer(layer.rate, seed=layers.next_seed(), dtype=layers.dtype, name=name)
        dropout.noise_shape = layer.noise_shape
        return dropout
    values: dict[str, Any] = {**layer.get_config(), "name": name}
    if isinstance(layer, keras.Layer):  # and not an operation, such as a sum of two tensors
        values["dtype"] = layers.dtype
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
    with keras_settings():
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
