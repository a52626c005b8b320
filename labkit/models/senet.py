"""SE-ResNets for 32x32 images: ResNets whose blocks weigh their channels by what the whole image holds.

Hu et al., "Squeeze-and-Excitation Networks" (2017), arXiv:1709.01507: before a block's shortcut is added, the
channels are averaged over the image, and two small dense layers turn the averages into a factor between 0
and 1 for each channel. Blocks and depths are those of ``resnet``.
"""

import keras

from labkit.models.layer_factory import LayerFactory
from labkit.models.resnet import resnet

__all__ = ["se_resnet"]

# Hu et al. (2017), section 3.3. It leaves stages of 16 channels one unit between the dense layers, as in
# PyTorchCV's CIFAR models.
REDUCTION = 16


def se_resnet(
    layers: LayerFactory, images, *, num_layers: int, version: int, block: str, num_classes: int
) -> keras.KerasTensor:
    """Return the logits, float32 [batch, num_classes], of an SE-ResNet over ``images``.

    Args:
        layers: makes the layers, with layout, precision, normalization and seed decided.
        images: float [batch, height, width, channels], or channels first where the factory says so.
        num_layers: 6n+2 (basic) or 9n+2 (bottleneck).
        version: 1 (activation after the sum) or 2 (before the convolutions).
        block: ``basic`` or ``bottleneck``.
        num_classes: of the logits.
    """
    return resnet(
        layers,
        images,
        num_layers=num_layers,
        version=version,
        block=block,
        num_classes=num_classes,
        recalibrate=_squeeze_excite,
    )


def _squeeze_excite(layers: LayerFactory, x):
    """average-dense-relu-dense-sigmoid: a factor for each channel, and their product with the input."""
    channels = layers.channels(x)
    squeezed = layers.global_average(x)
    hidden = layers.relu(layers.dense(squeezed, max(1, channels // REDUCTION)))
    return layers.scale_channels(x, layers.sigmoid(layers.dense(hidden, channels)))
