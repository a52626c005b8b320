"""A small ConvNeXt: Liu et al., "A ConvNet for the 2020s" (2022), arXiv:2201.03545.

Depths and widths are those of the smallest one, Atto (Woo et al., "ConvNeXt V2", 2023, arXiv:2301.00808,
section 4; with the blocks of 2022 it is ``convnext_atto`` of timm). Its first layer makes patches of 4x4
pixels for ImageNet; here they have 2x2, so that a 32x32 image is 16x16 in the first stage and 2x2 in the
last one. Stochastic depth, which belongs to longer training, is left out.
"""

import keras

from labkit.models.layer_factory import LayerFactory

DEPTHS, WIDTHS = (2, 2, 6, 2), (40, 80, 160, 320)  # Atto
PATCH = 2
KERNEL = 7
LAYER_SCALE = 1e-6  # initial, section A.1
STDDEV = 0.02  # of initial weights, section A.1


def convnext(layers: LayerFactory, images, *, num_classes: int, patch: int = PATCH) -> keras.KerasTensor:
    """Return the logits of a ConvNeXt for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides precision and seed. The network itself is channels last, and has
            layer normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_classes: number of logits.
        patch: side in pixels of the first layer's patches.
    """
    x = layers.channels_last(images)
    with layers.name_scope("stem"):
        x = layers.layer_norm(layers.biased_conv(x, WIDTHS[0], patch, stride=patch, stddev=STDDEV))
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True), start=1):
        if stage > 1:
            with layers.name_scope(f"stage{stage}"):
                x = layers.biased_conv(layers.layer_norm(x), width, 2, stride=2, stddev=STDDEV)
        for block in range(1, depth + 1):
            with layers.name_scope(f"stage{stage}_block{block}"):
                y = layers.layer_norm(layers.depthwise_conv(x, KERNEL, stddev=STDDEV))
                y = layers.gelu(layers.dense(y, 4 * width, stddev=STDDEV))
                y = layers.dense(y, width, stddev=STDDEV)
                x = layers.add(x, layers.layer_scale(y, LAYER_SCALE))
    with layers.name_scope(f"stage{len(DEPTHS)}"):
        x = layers.layer_norm(layers.global_average(x))
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)
