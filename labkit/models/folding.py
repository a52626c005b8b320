"""Batch normalization folded into the convolutions before it, for prediction."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from labkit.models.layers import BatchNormalization, shifting_only

__all__ = ["foldable", "folded_normalization"]


def foldable(model: keras.Model) -> list[tuple[keras.layers.Conv2D, BatchNormalization]]:
    """Return each plain convolution whose output batch normalization alone uses, and that.

    Plain: no offsets, no activation. A network that isn't flat, one Functional model of layers, has none.
    """
    config = model.get_config()
    if "output_layers" not in config or any(isinstance(layer, keras.Model) for layer in model.layers):
        return []
    sources = {entry["name"]: list(_sources(entry["inbound_nodes"])) for entry in config["layers"]}
    used = Counter(name for names in sources.values() for name in names)
    used.update(part for part in keras.tree.flatten(config["output_layers"]) if isinstance(part, str))
    layers = {layer.name: layer for layer in model.layers}
    found = []
    for name, layer in layers.items():
        if not isinstance(layer, BatchNormalization) or len(sources[name]) != 1:
            continue
        convolution = layers.get(sources[name][0])
        # Exactly this class: kernels of its descendants have other shapes, or are made in the call.
        if convolution is None or type(convolution) is not keras.layers.Conv2D:
            continue
        plain = not convolution.use_bias and convolution.activation is keras.activations.linear
        if plain and used[convolution.name] == 1:
            found.append((convolution, layer))
    return found


def _sources(node: Any) -> Iterator[str]:
    """Yield the names of the layers whose outputs a layer's serialized calls take."""
    if isinstance(node, dict):
        if "keras_history" in node:
            yield node["keras_history"][0]
        else:
            yield from _sources(list(node.values()))
    elif isinstance(node, list | tuple):
        for part in node:
            yield from _sources(part)


@contextlib.contextmanager
def folded_normalization(model: keras.Model) -> Iterator[None]:
    """Let ``model``, called within for prediction, scale kernels in place of images.

    A convolution with kernel k, normalized by mean m, variance v, gamma g and beta b, is one with kernel
    k * s and offset b - m * s, where s = g / sqrt(v + epsilon) (Jacob et al., 2018, section 3.2). With its
    offset and the rectifier behind it TensorFlow makes one kernel of it, in bfloat16, too, where it merges no
    batch normalization. Logits differ from unfolded ones by rounding. No variable is changed.
    """
    kernels, offsets = [], {}
    for convolution, norm in foldable(model):
        variance = tf.convert_to_tensor(norm.moving_variance)
        scale = tf.convert_to_tensor(norm.gamma) * tf.math.rsqrt(variance + norm.epsilon)
        kernels.append((convolution.kernel, tf.convert_to_tensor(convolution.kernel) * scale))
        offsets[norm] = tf.convert_to_tensor(norm.beta) - tf.convert_to_tensor(norm.moving_mean) * scale
    with keras.StatelessScope(state_mapping=kernels), shifting_only(offsets):
        yield
