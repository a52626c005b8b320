"""SE-ResNets: ResNets that weight the channels of each block by the content of the image.

Hu et al., "Squeeze-and-Excitation Networks" (2017), arXiv:1709.01507: before a block's shortcut is added, the
channels are averaged over the image, and two small dense layers turn the averages into a factor between 0
and 1 for each channel. Blocks and depths are those of ``resnet`` and ``imagenet_resnet``.
"""

import functools

from labkit.models.layer_factory import LayerFactory
from labkit.models.resnet import imagenet_resnet, resnet

__all__ = ["imagenet_se_resnet", "se_resnet"]

# Hu et al. (2017), section 3.3. A stage of 16 channels then has one hidden unit, as in PyTorchCV for CIFAR.
REDUCTION = 16


def _squeeze_excite(layers: LayerFactory, x):
    """Multiply each channel by a factor: average, dense, ReLU, dense, sigmoid."""
    channels = layers.channels(x)
    squeezed = layers.global_average(x)
    hidden = layers.relu(layers.dense(squeezed, max(1, channels // REDUCTION)))
    return layers.scale_channels(x, layers.sigmoid(layers.dense(hidden, channels)))


# They take the arguments of ``resnet`` and ``imagenet_resnet`` except ``recalibrate``.
se_resnet = functools.partial(resnet, recalibrate=_squeeze_excite)
imagenet_se_resnet = functools.partial(imagenet_resnet, recalibrate=_squeeze_excite)
