"""Wide residual networks for 32x32 images: few blocks with many channels.

Zagoruyko & Komodakis, "Wide Residual Networks" (2016), arXiv:1605.07146: blocks of two 3x3 convolutions with
the activation before them and k times as many channels as in a ResNet. WRN-d-k has depth d = 6n+4 and width
factor k. The paper also tries dropout between the convolutions; it is left out here.
"""

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["wide_resnet"]

STEM_WIDTH = 16  # table 1, conv1
STAGE_WIDTHS = (16, 32, 64)  # table 1, conv2 to conv4, times k


def wide_resnet(
    layers: LayerFactory, images, *, num_layers: int, width_factor: float, num_classes: int
) -> keras.KerasTensor:
    """Return the logits of a wide ResNet for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_layers: 6n+4.
        width_factor: k, which multiplies the channels of the stages.
        num_classes: number of logits.
    """
    blocks_per_stage = (num_layers - 4) // 6

    with layers.name_scope("stem"):
        x = layers.conv(images, STEM_WIDTH, 3)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with layers.name_scope(f"stage{stage}_block{index + 1}"):
                x = _block(layers, x, round(width * width_factor), stride)
    with layers.name_scope(f"stage{len(STAGE_WIDTHS)}"):
        x = layers.norm_relu(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def _block(layers: LayerFactory, x, width: int, stride: int):
    """Return norm-relu-conv-norm-relu-conv plus the shortcut: x, or a projection of the activated input."""
    activated = layers.norm_relu(x)
    changes_shape = stride != 1 or layers.channels(x) != width
    shortcut = layers.conv(activated, width, 1, stride) if changes_shape else x
    x = layers.norm_relu(layers.conv(activated, width, 3, stride))
    x = layers.conv(x, width, 3)
    return layers.add(x, shortcut)
