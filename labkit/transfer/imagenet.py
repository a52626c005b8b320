"""ImageNet's weights of ResNet and VGG in keras.applications, for labkit's networks of the same architecture.

The networks differ in four ways, none of which changes the logits (tests/transfer/test_imagenet.py): the
names of layers; biases of convolutions before a batch normalization, which labkit leaves out; the epsilon of
the normalization; and the images. Those of keras.applications ("caffe" mode) are blue, green, red with the
mean colour subtracted, from -124 to 151. labkit's are red, green, blue and standardized.
"""

import re
from typing import Any

import keras
import numpy as np

from labkit.models.keras_application import IMAGENET_STD, default_keras_settings

__all__ = ["own_weights", "published_network"]

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
    ``labkit.models.keras_application``. A standardized 0 then is the mean colour, which is 0 for Keras's
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

    Without the bias, the mean is lower by it. Another epsilon is made up for in gamma, so that the moving
    variance stays the one of the images.
    """
    variance = np.asarray(layer.moving_variance, np.float64)
    factor = np.sqrt((variance + epsilon) / (variance + layer.epsilon))
    return {
        f"{name}/gamma": (np.asarray(layer.gamma) * factor).astype(np.float32),
        f"{name}/beta": np.asarray(layer.beta),
        f"{name}/moving_mean": np.asarray(layer.moving_mean) - bias,
        f"{name}/moving_variance": np.asarray(layer.moving_variance),
    }
