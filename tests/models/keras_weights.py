"""The weights of ``reference_weights`` in a Keras model, as ``torch_reference`` has them in PyTorch's."""

import re
from collections.abc import Iterator

import keras
import numpy as np

from tests.models.reference_weights import KINDS, layer_weights

__all__ = ["load_weights", "weights_by_place"]

CLASSES = {
    "convolution": ("Conv2D", "Whitening", "DepthwiseConv2D"),
    "norm": ("BatchNormalization", "LayerNormalization"),
    "dense": ("Dense", "ChannelScale"),
}


def load_weights(model: keras.Model) -> keras.Model:
    """Give every layer its weights, by kind and order of construction. Returns the model."""
    for where, layer in _layers(model):
        arrays = layer_weights(*where, {weight.name: tuple(weight.shape) for weight in layer.weights})
        for weight in layer.weights:
            weight.assign(arrays[weight.name])
    return model


def weights_by_place(model: keras.Model) -> dict[str, np.ndarray]:
    """Return copies of all weights by kind, number and name, such as ``dense 0 kernel``."""
    return {
        f"{kind} {number} {weight.name}": weight.value.numpy().copy()
        for (kind, number), layer in _layers(model)
        for weight in layer.weights
    }


def _layers(model: keras.Model) -> Iterator[tuple[tuple[str, int], keras.Layer]]:
    layers = sorted((layer for layer in model.layers if layer.weights), key=_order)
    kinds = {name: kind for kind, names in CLASSES.items() for name in names}
    numbers = dict.fromkeys(KINDS, 0)
    for layer in layers:
        kind = kinds[type(layer).__name__]
        yield (kind, numbers[kind]), layer
        numbers[kind] += 1


def _order(layer: keras.Layer) -> tuple[bool, bool, tuple[str | int, ...]]:
    """Names say where a layer is, such as ``stage10_block2_conv1``: the stem first, the logits last."""
    parts = re.split(r"(\d+)", layer.name)
    place = tuple(int(part) if part.isdecimal() else part for part in parts)
    return layer.name == "logits", not layer.name.startswith("stem"), place
