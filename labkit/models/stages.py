"""Find a network's stages and head by layer name, for freezing, unfreezing and replacing the head."""

import keras

from labkit.models.layers import BatchNormalization

__all__ = ["HEAD", "layers_with_weights", "stages", "varying_weights"]

HEAD = "logits"


def layers_with_weights(model: keras.Model) -> list[keras.Layer]:
    """Return all layers with weights, including those of nested models, ordered from images to logits."""
    found = []
    for layer in model.layers:
        found += layers_with_weights(layer) if isinstance(layer, keras.Model) else [layer]
    return [layer for layer in found if layer.weights]


def stages(model: keras.Model) -> dict[str, list[keras.Layer]]:
    """Return the layers with weights by stage, ordered from images to logits.

    The stage is the beginning of a layer's name (``LayerFactory.name_scope``): ``stage2_block1_conv1`` is in
    ``stage2``. The head is ``logits``.
    """
    found: dict[str, list[keras.Layer]] = {}
    for layer in layers_with_weights(model):
        found.setdefault(layer.name.split("_")[0], []).append(layer)
    return found


def varying_weights(layer: keras.Layer) -> list[keras.Variable]:
    """Return a layer's weights without the constant gamma of a batch normalization with ``scale=False``."""
    if isinstance(layer, BatchNormalization) and not layer.scale:
        return [weight for weight in layer.weights if weight is not layer.gamma]
    return list(layer.weights)
