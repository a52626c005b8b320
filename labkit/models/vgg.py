"""VGG networks: with batch normalization for 32x32 images, and as published for ImageNet.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
arXiv:1409.1556: five stages of 3x3 convolutions, each followed by max pooling, which reduce a 32x32 image to
1x1 and a 224x224 image to 7x7. ``imagenet_vgg`` is this network. It ends with two dense layers of 4,096
units, which have 86 % of the weights of VGG-16. Each is followed by dropout (section 3.1, at a rate of 0.5).

``vgg`` leaves the two dense layers out, because they were designed for the 7x7 feature maps of
ImageNet. This has been common on CIFAR-10 since pytorch-cifar (kuangliu, 2017); cifar.torch (Zagoruyko, 2015)
kept one dense layer of 512 units. The names VGG-11 to VGG-19 still count the two layers. Batch normalization
(Ioffe & Szegedy, 2015) is newer than the paper; with it convolutions need no bias.
"""

from collections.abc import Callable
from typing import Any

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["imagenet_vgg", "vgg"]

STAGE_WIDTHS = (64, 128, 256, 512, 512)  # table 1
CONVOLUTIONS = {  # per stage: table 1, configurations A, B, D and E
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
DENSE_UNITS = 4096  # table 1, FC-4096


def vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a VGG network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout. The
            last feature map is averaged over height and width, so any size works.
        num_layers: 11, 13, 16 or 19.
        num_classes: number of logits.
    """
    x = _convolutions(layers, images, num_layers, lambda x, width: layers.norm_relu(layers.conv(x, width, 3)))
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def imagenet_vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a VGG network at its published size, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision and seed. There is no normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
            Published for 224x224. The first dense layer has 2.1 million weights for each position of the last
            feature map, so weights fit one image size only.
        num_layers: 11, 13, 16 or 19.
        num_classes: number of logits.
    """
    x = _convolutions(
        layers, images, num_layers, lambda x, width: layers.relu(layers.biased_conv(x, width, 3))
    )
    with layers.name_scope(f"stage{len(STAGE_WIDTHS) + 1}"):
        x = layers.flatten(x)
        x = layers.dropout(layers.relu(layers.dense(x, DENSE_UNITS)))
        x = layers.relu(layers.dense(x, DENSE_UNITS))  # the head begins with the second dropout
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)


def _convolutions(layers: LayerFactory, x, num_layers: int, convolve: Callable[[Any, int], Any]):
    """Return the last feature map; ``convolve`` applies a convolution of a width, and what follows it."""
    stages = zip(STAGE_WIDTHS, CONVOLUTIONS[num_layers], strict=True)
    for stage, (width, convolutions) in enumerate(stages, start=1):
        with layers.name_scope(f"stage{stage}"):
            for _ in range(convolutions):
                x = convolve(x, width)
            x = layers.max_pool(x, 2, padding="same")
    return x
