"""Residual networks: for 32x32 images, at the size published for ImageNet, with channels weighted, and wide.

v1: He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2. v2: He et al.,
"Identity Mappings in Deep Residual Networks" (2016), appendix. Depth 6n+2 with basic blocks (two 3x3
convolutions), 9n+2 with bottleneck blocks (1x1, 3x3, 1x1 with four times the width).

``imagenet_resnet`` is v1 at the sizes of table 1 in the first paper. A bottleneck block that halves the image
does so in its first 1x1 convolution, as in the paper and in keras.applications. torchvision's networks, known
as v1.5, do so in the 3x3 convolution, the second: weights of the same shapes, and 6 % more multiply-adds in
ResNet-50.

Squeeze and excitation (Hu et al., "Squeeze-and-Excitation Networks", 2017, arXiv:1709.01507): before a
block's shortcut is added, the channels are averaged over the image, and two small dense layers turn the
averages into a factor between 0 and 1 for each channel. ``se_resnet`` and ``imagenet_se_resnet`` have the
blocks and depths of ``resnet`` and ``imagenet_resnet``.

Wide networks (Zagoruyko & Komodakis, "Wide Residual Networks", 2016, arXiv:1605.07146): blocks of two 3x3
convolutions with the activation before them and k times as many channels as in a ResNet. WRN-d-k has depth
d = 6n+4 and width factor k. The paper also tries dropout between the convolutions; it is left out here.
"""

import functools

import keras

from labkit.models.layer_factory import LayerFactory

STAGE_WIDTHS = (16, 32, 64)  # He et al. (2015), table 6
BOTTLENECK_EXPANSION = 4

IMAGENET_STAGE_WIDTHS = (64, 128, 256, 512)  # He et al. (2015), table 1
IMAGENET_BLOCKS = {  # per stage, conv2_x to conv5_x in table 1
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
SHALLOWEST_BOTTLENECK = 50  # table 1: ResNet-18 and ResNet-34 have basic blocks


def resnet(
    layers: LayerFactory,
    images,
    *,
    num_layers: int,
    resnet_version: int,
    block: str,
    num_classes: int,
    squeeze_excite: bool = False,
) -> keras.KerasTensor:
    """Return the logits of a ResNet for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_layers: 6n+2 (basic) or 9n+2 (bottleneck).
        resnet_version: 1 (activation after the sum) or 2 (activation before the convolutions).
        block: ``basic`` or ``bottleneck``.
        num_classes: number of logits.
        squeeze_excite: whether a block's channels are weighted before its shortcut is added (``se_resnet``).
    """
    bottleneck = block == "bottleneck"
    blocks_per_stage = (num_layers - 2) // (9 if bottleneck else 6)
    residual_block = _block_v1 if resnet_version == 1 else _block_v2

    with layers.name_scope("stem"):
        x = layers.conv(images, STAGE_WIDTHS[0], 3)
        if resnet_version == 1:
            x = layers.norm_relu(x)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with layers.name_scope(f"stage{stage}_block{index + 1}"):
                residual, shortcut = residual_block(layers, x, width, stride, bottleneck)
                if squeeze_excite:
                    residual = layers.squeeze_excite(residual)
                x = layers.add(residual, shortcut)
                if resnet_version == 1:
                    x = layers.relu(x)
    if resnet_version == 2:
        with layers.name_scope(f"stage{len(STAGE_WIDTHS)}"):
            x = layers.norm_relu(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def imagenet_resnet(
    layers: LayerFactory,
    images,
    *,
    num_layers: int,
    num_classes: int,
    bottleneck_stride: str = "first",
    squeeze_excite: bool = False,
) -> keras.KerasTensor:
    """Return the logits of a ResNet at the size published for ImageNet, float32 [batch, num_classes].

    With shortcuts of option B: projections where the shape changes, for all depths.

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
            Published for 224x224; any size works, and 32x32 leaves one position in the last stage.
        num_layers: 18, 34, 50, 101 or 152.
        num_classes: number of logits.
        bottleneck_stride: which convolution of a bottleneck halves the image, ``first`` or ``second``.
        squeeze_excite: as in ``resnet``.
    """
    bottleneck = num_layers >= SHALLOWEST_BOTTLENECK

    with layers.name_scope("stem"):
        x = layers.norm_relu(layers.conv(images, IMAGENET_STAGE_WIDTHS[0], 7, 2, padding="symmetric"))
        x = layers.max_pool(x, 3, 2, padding="symmetric")
    stages = zip(IMAGENET_STAGE_WIDTHS, IMAGENET_BLOCKS[num_layers], strict=True)
    for stage, (width, blocks) in enumerate(stages, start=1):
        for index in range(blocks):
            stride = 2 if stage > 1 and index == 0 else 1
            with layers.name_scope(f"stage{stage}_block{index + 1}"):
                residual, shortcut = _block_v1(
                    layers, x, width, stride, bottleneck, project=True, padding="symmetric",
                    stride_in=bottleneck_stride,
                )  # fmt: skip
                if squeeze_excite:
                    residual = layers.squeeze_excite(residual)
                x = layers.relu(layers.add(residual, shortcut))
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def _block_v1(
    layers: LayerFactory,
    x,
    width: int,
    stride: int,
    bottleneck: bool,
    *,
    project: bool = False,
    padding: str = "same",
    stride_in: str = "first",
):
    """Return the residual, conv-norm-relu ... conv-norm, and the shortcut; a ReLU follows their sum.

    ``project``: whether the shortcut of a basic block is projected, too. ``padding``: of convolutions with a
    stride. ``stride_in``: which convolution of a bottleneck has it.
    """
    out_channels = width * (BOTTLENECK_EXPANSION if bottleneck else 1)
    shortcut = _shortcut(layers, x, out_channels, stride, bottleneck or project, norm=True)
    if bottleneck:
        strides = (1, stride) if stride_in == "second" else (stride, 1)
        x = layers.norm_relu(layers.conv(x, width, 1, strides[0]))
        x = layers.norm_relu(layers.conv(x, width, 3, strides[1], padding=padding))
        x = layers.norm(layers.conv(x, out_channels, 1))
    else:
        x = layers.norm_relu(layers.conv(x, width, 3, stride, padding=padding))
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


# ---- squeeze and excitation

# They take the other arguments of ``resnet`` and ``imagenet_resnet``.
se_resnet = functools.partial(resnet, squeeze_excite=True)
imagenet_se_resnet = functools.partial(imagenet_resnet, squeeze_excite=True)


# ---- wide networks


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
        x = layers.conv(images, STAGE_WIDTHS[0], 3)
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        for index in range(blocks_per_stage):
            stride = 2 if stage > 1 and index == 0 else 1
            with layers.name_scope(f"stage{stage}_block{index + 1}"):
                x = _wide_block(layers, x, round(width * width_factor), stride)
    with layers.name_scope(f"stage{len(STAGE_WIDTHS)}"):
        x = layers.norm_relu(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def _wide_block(layers: LayerFactory, x, width: int, stride: int):
    """Return norm-relu-conv-norm-relu-conv plus the shortcut: x, or a projection of the activated input."""
    activated = layers.norm_relu(x)
    changes_shape = stride != 1 or layers.channels(x) != width
    shortcut = layers.conv(activated, width, 1, stride) if changes_shape else x
    x = layers.norm_relu(layers.conv(activated, width, 3, stride))
    x = layers.conv(x, width, 3)
    return layers.add(x, shortcut)
