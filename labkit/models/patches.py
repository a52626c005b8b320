"""Networks over patches of the image: a small vision transformer and a small ConvNeXt.

``vit``: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), arXiv:2010.11929. The sizes are those of
ViT-Ti (Touvron et al., "DeiT", 2020, arXiv:2012.12877, table 1), with patches of 4 in place of 16 pixels,
which make 64 of a 32x32 image. As Beyer, Zhai & Kolesnikov, "Better plain ViT baselines for ImageNet-1k"
(2022), arXiv:2205.01580, propose, positions are sines and cosines that aren't trained, and an average over
the patches replaces the class token. So images of any size can be taken.

``convnext``: Liu et al., "A ConvNet for the 2020s" (2022), arXiv:2201.03545.

Depths and widths are those of the smallest one, Atto (Woo et al., "ConvNeXt V2", 2023, arXiv:2301.00808,
section 4; with the blocks of 2022 it is ``convnext_atto`` of timm). Its first layer makes patches of 4x4
pixels for ImageNet; here they have 2x2, so that a 32x32 image is 16x16 in the first stage and 2x2 in the
last one. Stochastic depth, which belongs to longer training, is left out.
"""

import keras

from labkit.models.layer_factory import LayerFactory

WIDTH, DEPTH, HEADS = 192, 12, 3  # DeiT, table 1
HIDDEN = 4 * WIDTH
PATCH = 4
BLOCKS = 3  # of a stage, for freezing; the network has no stages of its own
STDDEV = 0.02  # of initial weights, as DeiT's code


def vit(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a vision transformer for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides precision and seed. The network itself is channels last, and has
            layer normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_classes: number of logits.
    """
    x = layers.channels_last(images)
    with layers.name_scope("stem"):
        x = layers.biased_conv(x, WIDTH, PATCH, stride=PATCH, stddev=STDDEV)
        x = layers.add_positions(x)
    for block in range(DEPTH):
        with layers.name_scope(f"stage{block // BLOCKS + 1}_block{block % BLOCKS + 1}"):
            mixed = layers.dense(layers.layer_norm(x), 3 * WIDTH, stddev=STDDEV)
            mixed = layers.dense(layers.attention(mixed, HEADS), WIDTH, stddev=STDDEV)
            x = layers.add(x, mixed)
            hidden = layers.dense(layers.layer_norm(x), HIDDEN, stddev=STDDEV)
            x = layers.add(x, layers.dense(layers.activation(hidden, "gelu"), WIDTH, stddev=STDDEV))
    with layers.name_scope(f"stage{DEPTH // BLOCKS}"):
        x = layers.layer_norm(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


DEPTHS, WIDTHS = (2, 2, 6, 2), (40, 80, 160, 320)  # Atto
CONVNEXT_PATCH = 2
KERNEL = 7
LAYER_SCALE = 1e-6  # initial, section A.1
CONVNEXT_STDDEV = 0.02  # of initial weights, section A.1


def convnext(
    layers: LayerFactory, images, *, num_classes: int, patch: int = CONVNEXT_PATCH
) -> keras.KerasTensor:
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
        x = layers.layer_norm(layers.biased_conv(x, WIDTHS[0], patch, stride=patch, stddev=CONVNEXT_STDDEV))
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True), start=1):
        if stage > 1:
            with layers.name_scope(f"stage{stage}"):
                x = layers.biased_conv(layers.layer_norm(x), width, 2, stride=2, stddev=CONVNEXT_STDDEV)
        for block in range(1, depth + 1):
            with layers.name_scope(f"stage{stage}_block{block}"):
                y = layers.layer_norm(layers.depthwise_conv(x, KERNEL, stddev=CONVNEXT_STDDEV))
                y = layers.activation(layers.dense(y, 4 * width, stddev=CONVNEXT_STDDEV), "gelu")
                y = layers.dense(y, width, stddev=CONVNEXT_STDDEV)
                x = layers.add(x, layers.layer_scale(y, LAYER_SCALE))
    with layers.name_scope(f"stage{len(DEPTHS)}"):
        x = layers.layer_norm(layers.global_average(x))
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)
