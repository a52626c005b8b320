"""VGG networks with batch normalization for 32x32 images.

Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
arXiv:1409.1556: five stages of 3x3 convolutions, each closed by a maximum pool, which leave one place of a
32x32 image. Of the paper's three dense layers the two of 4,096 units are left out: they were made for the
7x7 places of ImageNet's images. That is common on CIFAR-10 since pytorch-cifar (kuangliu, 2017); cifar.torch
(Zagoruyko, 2015) kept one, of 512. The names still count them. Batch normalization (Ioffe & Szegedy, 2015) is
younger than the paper; with it convolutions need no bias.
"""

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["vgg"]

STAGE_WIDTHS = (64, 128, 256, 512, 512)  # table 1
CONVOLUTIONS = {  # of each stage: table 1, configurations A, B, D and E
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits, float32 [batch, num_classes], of a VGG network over ``images``.

    Args:
        layers: makes the layers, with layout, precision, normalization and seed decided.
        images: float [batch, height, width, channels], or channels first where the factory says so. Larger
            ones leave several places, which are averaged.
        num_layers: 11, 13, 16 or 19.
        num_classes: of the logits.
    """
    x = images
    stages = zip(STAGE_WIDTHS, CONVOLUTIONS[num_layers], strict=True)
    for stage, (width, convolutions) in enumerate(stages, start=1):
        with layers.part(f"stage{stage}"):
            for _ in range(convolutions):
                x = layers.norm_relu(layers.conv(x, width, 3))
        x = layers.max_pool(x, 2, padding="same")
    return layers.logits(layers.global_average(x), num_classes)
