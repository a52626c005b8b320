"""Fold batch normalization into the convolutions before it, for prediction."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from labkit.models.convolution import Conv2D
from labkit.models.layers import BatchNormalization, shifting_only

__all__ = ["foldable", "folded_normalization"]


def foldable(model: keras.Model) -> list[tuple[keras.layers.Conv2D, BatchNormalization]]:
    """Return each pair of a plain convolution and the batch normalization that alone uses its output.

    A convolution is plain if it has no bias and no activation. The result is empty if the network is not one
    Functional model, or contains other models.
    """
    config = model.get_config()
    if "output_layers" not in config or any(isinstance(layer, keras.Model) for layer in model.layers):
        return []
    sources = {entry["name"]: list(_sources(entry["inbound_nodes"])) for entry in config["layers"]}
    used = Counter(name for names in sources.values() for name in names)
    used.update(entry for entry in keras.tree.flatten(config["output_layers"]) if isinstance(entry, str))
    layers = {layer.name: layer for layer in model.layers}
    found = []
    for name, layer in layers.items():
        if not isinstance(layer, BatchNormalization) or len(sources[name]) != 1:
            continue
        convolution = layers.get(sources[name][0])
        # Only these classes: subclasses have kernels of other shapes, or compute them in the call.
        if convolution is None or type(convolution) not in (keras.layers.Conv2D, Conv2D):
            continue
        plain = not convolution.use_bias and convolution.activation is keras.activations.linear
        if plain and used[convolution.name] == 1:
            found.append((convolution, layer))
    return found


def _sources(node: Any) -> Iterator[str]:
    """Yield the names of the layers that provide the inputs of a layer's serialized calls."""
    if isinstance(node, dict):
        if "keras_history" in node:
            yield node["keras_history"][0]
        else:
            yield from _sources(list(node.values()))
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _sources(child)


@contextlib.contextmanager
def folded_normalization(model: keras.Model) -> Iterator[None]:
    """Predict faster: within the block, ``model`` scales its kernels instead of normalizing activations.

    A convolution with kernel k, followed by normalization with mean m, variance v, gamma g and beta b, equals
    a convolution with kernel k * s and bias b - m * s, where s = g / sqrt(v + epsilon) (Jacob et al., 2018,
    section 3.2). TensorFlow fuses a convolution, its bias and a ReLU into one operation, also in bfloat16,
    where it can't fuse batch normalization. The logits differ from the unfolded ones only by rounding. No
    variable is changed.
    """
    kernels, offsets = [], {}
    for convolution, norm in foldable(model):
        variance = tf.convert_to_tensor(norm.moving_variance)
        scale = tf.convert_to_tensor(norm.gamma) * tf.math.rsqrt(variance + norm.epsilon)
        kernels.append((convolution.kernel, tf.convert_to_tensor(convolution.kernel) * scale))
        offsets[norm] = tf.convert_to_tensor(norm.beta) - tf.convert_to_tensor(norm.moving_mean) * scale
    with keras.StatelessScope(state_mapping=kernels), shifting_only(offsets):
        yield
