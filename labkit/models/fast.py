"""A network that trains in seconds: airbench's, with widths that suit a CPU's vector units.

Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024), arXiv:2404.00498, section 3: a frozen
whitening convolution, then three stages of two 3x3 convolutions with max pooling between them, batch
normalization without a trained scale, and convolutions initialized to the identity.
"""

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["fast_net"]

STAGE_WIDTHS = (64, 256, 256)  # airbench94
LOGIT_SCALE = 1 / 9  # airbench94


def fast_net(
    layers: LayerFactory,
    images,
    *,
    width_factor: float,
    num_classes: int,
    whitening: bool = True,
    dirac: bool = True,
    activation: str = "gelu",
) -> keras.KerasTensor:
    """Return the logits of the fast network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        width_factor: multiplies the widths of the stages, which are then rounded to a multiple of 16.
        num_classes: number of logits.
        whitening: whether the first layer is a frozen whitening convolution; otherwise it is trained.
        dirac: whether convolutions are initialized to the identity.
        activation: ``relu``, ``silu`` or ``gelu``.
    """
    activate = {"relu": layers.relu, "silu": layers.silu, "gelu": layers.gelu}[activation]

    def norm_activate(x):
        return activate(layers.norm(x, scale=False))

    with layers.name_scope("stem"):
        x = activate(layers.whitening(images)) if whitening else norm_activate(layers.conv(images, 24, 3))
    for stage, width in enumerate(STAGE_WIDTHS, start=1):
        filters = max(16, round(width * width_factor / 16) * 16)
        with layers.name_scope(f"stage{stage}"):
            x = norm_activate(layers.max_pool(layers.conv(x, filters, 3, dirac=dirac), 2))
            x = norm_activate(layers.conv(x, filters, 3, dirac=dirac))
    with layers.name_scope("head"):
        return layers.logits(layers.global_max(x), num_classes, use_bias=False, scale=LOGIT_SCALE)
