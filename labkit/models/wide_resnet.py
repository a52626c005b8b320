"""Wide residual networks for 32x32 images: few blocks of many channels.

Zagoruyko & Komodakis, "Wide Residual Networks" (2016), arXiv:1605.07146: blocks of two 3x3 convolutions with
the activation before them, k times the channels of a ResNet. WRN-d-k has depth d = 6n+4 and width k. Dropout
between the convolutions, which the paper also tries, is left out.
"""

import keras

from labkit.models.toolbox import Toolbox

__all__ = ["wide_resnet"]

STEM_WIDTH = 16  # table 1, conv1
STAGE_WIDTHS = (16, 32, 64)  # table 1, conv2 to conv4, times k


def wide_resnet(
    toolbox: Toolbox, images, *, num_layers: int, width_factor: float, num_classes: int
) -> keras.KerasTensor:
    """Return the logits, float32 [batch, num_classes], of a wide ResNet over ``images``.

    Args:
        toolbox: makes the layers, with layout, precision, normalization and seed decided.
        images: float [batch, height, width, channels], or channels first where the toolbox says so.
        num_layers: 6n+4.
        width_factor: k, which multiplies the channels of the stages.
        num_classes: of the logits.
    """
    blocks_per_stage = (num_layers - 4) // 6

    with toolbox.part("stem"):
        x = toolbox.conv(images, STEM_WIDTH, 3)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with toolbox.part(f"stage{stage}_block{index + 1}"):
                x = _block(toolbox, x, round(width * width_factor), stride)
    with toolbox.part(f"stage{len(STAGE_WIDTHS)}"):
        x = toolbox.norm_relu(x)
    return toolbox.logits(toolbox.global_average(x), num_classes)


def _block(toolbox: Toolbox, x, width: int, stride: int):
    """norm-relu-conv twice, plus the shortcut: identity, or a projection of the activated input."""
    activated = toolbox.norm_relu(x)
    changes_shape = stride != 1 or toolbox.channels(x) != width
    shortcut = toolbox.conv(activated, width, 1, stride) if changes_shape else x
    x = toolbox.norm_relu(toolbox.conv(activated, width, 3, stride))
    x = toolbox.conv(x, width, 3)
    return toolbox.add(x, shortcut)
