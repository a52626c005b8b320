"""A small vision transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020), arXiv:2010.11929.

The sizes are those of ViT-Ti (Touvron et al., "DeiT", 2020, arXiv:2012.12877, table 1), with patches of 4 in
place of 16 pixels, which make 64 of a 32x32 image. As Beyer, Zhai & Kolesnikov, "Better plain ViT baselines
for ImageNet-1k" (2022), arXiv:2205.01580, propose, positions are sines and cosines that aren't trained, and
an average over the patches replaces the class token. So images of any size can be taken.
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
            hidden = layers.gelu(layers.dense(layers.layer_norm(x), HIDDEN, stddev=STDDEV))
            x = layers.add(x, layers.dense(hidden, WIDTH, stddev=STDDEV))
    with layers.name_scope(f"stage{DEPTH // BLOCKS}"):
        x = layers.layer_norm(x)
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)
