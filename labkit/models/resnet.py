"""ResNets for 32x32 images.

v1: He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2. v2: He et al.,
"Identity Mappings in Deep Residual Networks" (2016), appendix. Depth 6n+2 with basic blocks (two 3x3
convolutions), 9n+2 with bottleneck blocks (1x1, 3x3, 1x1 with four times the width).
"""

from collections.abc import Callable
from typing import Any

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["resnet"]

STAGE_WIDTHS = (16, 32, 64)  # He et al. (2015), table 6
BOTTLENECK_EXPANSION = 4


def resnet(
    layers: LayerFactory,
    images,
    *,
    num_layers: int,
    version: int,
    block: str,
    num_classes: int,
    recalibrate: Callable[[LayerFactory, Any], Any] | None = None,
) -> keras.KerasTensor:
    """Return the logits of a ResNet for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_layers: 6n+2 (basic) or 9n+2 (bottleneck).
        version: 1 (activation after the sum) or 2 (activation before the convolutions).
        block: ``basic`` or ``bottleneck``.
        num_classes: number of logits.
        recalibrate: applied to a block's residual before the shortcut is added (see ``senet``).
    """
    bottleneck = block == "bottleneck"
    blocks_per_stage = (num_layers - 2) // (9 if bottleneck else 6)
    residual_block = _block_v1 if version == 1 else _block_v2

    with layers.name_scope("stem"):
        x = layers.conv(images, STAGE_WIDTHS[0], 3)
        if version == 1:
            x = layers.norm_relu(x)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with layers.name_scope(f"stage{stage}_block{index + 1}"):
                residual, shortcut = residual_block(layers, x, width, stride, bottleneck)
                if recalibrate is not None:
                    residual = recalibrate(layers, residual)
                x = layers.add(residual, shortcut)
                if version == 1:
                    x = layers.relu(x)
    if version == 2:
        with layers.name_scope(f"stage{len(STAGE_WIDTHS)}"):
            x = layers.norm_relu(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def _block_v1(layers: LayerFactory, x, width: int, stride: int, bottleneck: bool):
    """Return the residual, conv-norm-relu ... conv-norm, and the shortcut; a ReLU follows their sum."""
    out_channels = width * (BOTTLENECK_EXPANSION if bottleneck else 1)
    shortcut = _shortcut(layers, x, out_channels, stride, bottleneck, norm=True)
    if bottleneck:
        x = layers.norm_relu(layers.conv(x, width, 1, stride))
        x = layers.norm_relu(layers.conv(x, width, 3))
        x = layers.norm(layers.conv(x, out_channels, 1))
    else:
        x = layers.norm_relu(layers.conv(x, width, 3, stride))
        x = layers.norm(layers.conv(x, width, 3))
    return x, shortcut


def _block_v2(layers: LayerFactory, x, width: int, stride: int, bottleneck: bool):
    """Return the residual, norm-relu-conv ... norm-relu-conv, and the shortcut."""
    out_channels = width * (BOTTLENECK_EXPANSION if bottleneck else 1)
    activated = layers.norm_relu(x)
    changes_shape = stride != 1 or layers.channels(x) != out_channels
    # If the shape changes, the shortcut starts from the activated input (He et al., 2016, section 4.1).
    shortcut = _shortcut(
        layers, activated if changes_shape else x, out_channels, stride, bottleneck, norm=False
    )
    if bottleneck:
        x = layers.norm_relu(layers.conv(activated, width, 1, stride))
        x = layers.norm_relu(layers.conv(x, width, 3))
        x = layers.conv(x, out_channels, 1)
    else:
        x = layers.norm_relu(layers.conv(activated, width, 3, stride))
        x = layers.conv(x, width, 3)
    return x, shortcut


def _shortcut(layers: LayerFactory, x, out_channels: int, stride: int, project: bool, norm: bool):
    """Return x, or if the shape changes, x pooled with zero channels (option A) or projected (option B)."""
    in_channels = layers.channels(x)
    if stride == 1 and in_channels == out_channels:
        return x
    if project:
        x = layers.conv(x, out_channels, 1, stride)
        return layers.norm(x) if norm else x
    return layers.pad_channels(layers.average_pool(x, stride), out_channels)
