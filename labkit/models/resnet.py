"""ResNets for 32x32 images.

v1: He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2. v2: He et al.,
"Identity Mappings in Deep Residual Networks" (2016), appendix. Depth 6n+2 with basic blocks (two 3x3
convolutions), 9n+2 with bottleneck blocks (1x1, 3x3, 1x1 with four times the width).
"""

from collections.abc import Callable
from typing import Any

import keras

from labkit.models.toolbox import Toolbox

__all__ = ["resnet"]

STAGE_WIDTHS = (16, 32, 64)  # He et al. (2015), table 6
BOTTLENECK_EXPANSION = 4


def resnet(
    toolbox: Toolbox,
    images,
    *,
    num_layers: int,
    version: int,
    block: str,
    num_classes: int,
    recalibrate: Callable[[Toolbox, Any], Any] | None = None,
) -> keras.KerasTensor:
    """Return the logits, float32 [batch, num_classes], of a ResNet over ``images``.

    Args:
        toolbox: makes the layers, with layout, precision, normalization and seed decided.
        images: float [batch, height, width, channels], or channels first where the toolbox says so.
        num_layers: 6n+2 (basic) or 9n+2 (bottleneck).
        version: 1 (activation after the sum) or 2 (before the convolutions).
        block: ``basic`` or ``bottleneck``.
        num_classes: of the logits.
        recalibrate: applied to what a block computes, before the shortcut is added (see ``senet``).
    """
    bottleneck = block == "bottleneck"
    blocks_per_stage = (num_layers - 2) // (9 if bottleneck else 6)
    residual_block = _block_v1 if version == 1 else _block_v2

    with toolbox.part("stem"):
        x = toolbox.conv(images, STAGE_WIDTHS[0], 3)
        if version == 1:
            x = toolbox.norm_relu(x)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with toolbox.part(f"stage{stage}_block{index + 1}"):
                residual, shortcut = residual_block(toolbox, x, width, stride, bottleneck)
                if recalibrate is not None:
                    residual = recalibrate(toolbox, residual)
            x = toolbox.add(residual, shortcut)
            if version == 1:
                x = toolbox.relu(x)
    if version == 2:
        with toolbox.part(f"stage{len(STAGE_WIDTHS)}"):
            x = toolbox.norm_relu(x)
    return toolbox.logits(toolbox.global_average(x), num_classes)


def _block_v1(toolbox: Toolbox, x, width: int, stride: int, bottleneck: bool):
    """Return conv-norm-relu ... conv-norm, and the shortcut; a relu follows their sum."""
    out_channels = width * (BOTTLENECK_EXPANSION if bottleneck else 1)
    shortcut = _shortcut(toolbox, x, out_channels, stride, bottleneck, norm=True)
    if bottleneck:
        x = toolbox.norm_relu(toolbox.conv(x, width, 1, stride))
        x = toolbox.norm_relu(toolbox.conv(x, width, 3))
        x = toolbox.norm(toolbox.conv(x, out_channels, 1))
    else:
        x = toolbox.norm_relu(toolbox.conv(x, width, 3, stride))
        x = toolbox.norm(toolbox.conv(x, width, 3))
    return x, shortcut


def _block_v2(toolbox: Toolbox, x, width: int, stride: int, bottleneck: bool):
    """Return norm-relu-conv ... norm-relu-conv, and the shortcut."""
    out_channels = width * (BOTTLENECK_EXPANSION if bottleneck else 1)
    activated = toolbox.norm_relu(x)
    changes_shape = stride != 1 or toolbox.channels(x) != out_channels
    # Where the shape changes, the shortcut starts from the activated input (He et al., 2016, section 4.1).
    shortcut = _shortcut(
        toolbox, activated if changes_shape else x, out_channels, stride, bottleneck, norm=False
    )
    if bottleneck:
        x = toolbox.norm_relu(toolbox.conv(activated, width, 1, stride))
        x = toolbox.norm_relu(toolbox.conv(x, width, 3))
        x = toolbox.conv(x, out_channels, 1)
    else:
        x = toolbox.norm_relu(toolbox.conv(activated, width, 3, stride))
        x = toolbox.conv(x, width, 3)
    return x, shortcut


def _shortcut(toolbox: Toolbox, x, out_channels: int, stride: int, project: bool, norm: bool):
    """Identity; where the shape changes, pooling and zero channels (option A) or a projection (option B)."""
    in_channels = toolbox.channels(x)
    if stride == 1 and in_channels == out_channels:
        return x
    if project:
        x = toolbox.conv(x, out_channels, 1, stride)
        return toolbox.norm(x) if norm else x
    return toolbox.pad_channels(toolbox.average_pool(x, stride), out_channels)
