"""The parts of a network by name: what freezing, thawing and a new head are about."""

import keras

from labkit.models.layers import BatchNormalization

__all__ = ["HEAD", "layers_with_weights", "stages", "varying_weights"]

HEAD = "logits"


def layers_with_weights(model: keras.Model) -> list[keras.Layer]:
    """Return the layers with weights, those of models within ``model`` too, from the images to the logits."""
    found = []
    for layer in model.layers:
        found += layers_with_weights(layer) if isinstance(layer, keras.Model) else [layer]
    return [layer for layer in found if layer.weights]


def stages(model: keras.Model) -> dict[str, list[keras.Layer]]:
    """Return the layers with weights by stage, from the images to the logits.

    A layer's name begins with its stage (``LayerFactory.part``): ``stage2`` of ``stage2_block1_conv1``; the
    head is ``logits``.
    """
    found: dict[str, list[keras.Layer]] = {}
    for layer in layers_with_weights(model):
        found.setdefault(layer.name.split("_")[0], []).append(layer)
    return found


def varying_weights(layer: keras.Layer) -> list[keras.Variable]:
    """Return the weights of a layer without those that never change: a normalization's factor of 1."""
    if isinstance(layer, BatchNormalization) and not layer.scale:
        return [weight for weight in layer.weights if weight is not layer.gamma]
    return list(layer.weights)
