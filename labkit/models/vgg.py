"""VGG networks with batch normalization for 32x32 images.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
arXiv:1409.1556: five stages of 3x3 convolutions, each followed by max pooling, which reduce a 32x32 image to
1x1. The two dense layers of 4,096 units are left out, because they were designed for the 7x7 feature maps of
ImageNet. This has been common on CIFAR-10 since pytorch-cifar (kuangliu, 2017); cifar.torch (Zagoruyko, 2015)
kept one dense layer of 512 units. The names VGG-11 to VGG-19 still count the two layers. Batch normalization
(Ioffe & Szegedy, 2015) is newer than the paper; with it convolutions need no bias.
"""

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["vgg"]

STAGE_WIDTHS = (64, 128, 256, 512, 512)  # table 1
CONVOLUTIONS = {  # per stage: table 1, configurations A, B, D and E
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a VGG network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout. The
            last feature map is averaged over height and width, so any size works.
        num_layers: 11, 13, 16 or 19.
        num_classes: number of logits.
    """
    x = images
    stages = zip(STAGE_WIDTHS, CONVOLUTIONS[num_layers], strict=True)
    for stage, (width, convolutions) in enumerate(stages, start=1):
        with layers.name_scope(f"stage{stage}"):
            for _ in range(convolutions):
                x = layers.norm_relu(layers.conv(x, width, 3))
            x = layers.max_pool(x, 2, padding="same")
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)
