"""LeNet, AlexNet, VGG, the network of TensorFlow's tutorial, and two that learn in minutes.

``lenet``: LeNet-5 of LeCun, Bottou, Bengio & Haffner, "Gradient-Based Learning Applied to Document
Recognition" (1998), section II.B, in the form that is common today: plain averages in place of trained
subsampling, all maps of the second convolution connected, tanh without its factors, and logits in place of
distances.

AlexNet: Krizhevsky, Sutskever & Hinton, "ImageNet Classification with Deep Convolutional Neural Networks"
(2012): five convolutions and three dense layers. The paper halves most layers to fit them onto two GPUs, and
normalizes local responses. ``imagenet_alexnet`` is the form with one half and without that normalization, of
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), arXiv:1404.5997, with
the widths of torchvision's network. ``alexnet`` is the same for 32x32 images, as in pytorch-classification
(bearpaw, 2017): pools of 2x2 pixels, and no dense layers before the logits.

VGG: Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
arXiv:1409.1556: five stages of 3x3 convolutions, each followed by max pooling, which reduce a 32x32 image to
1x1 and a 224x224 image to 7x7. ``imagenet_vgg`` is this network. It ends with two dense layers of 4,096
units, which have 86 % of the weights of VGG-16. Each is followed by dropout (section 3.1, at a rate of 0.5).

``vgg`` leaves the two dense layers out, because they were designed for the 7x7 feature maps of
ImageNet. This has been common on CIFAR-10 since pytorch-cifar (kuangliu, 2017); cifar.torch (Zagoruyko, 2015)
kept one dense layer of 512 units. The names VGG-11 to VGG-19 still count the two layers. Batch normalization
(Ioffe & Szegedy, 2015) is newer than the paper; with it convolutions need no bias.

``tutorial_cnn``: the network of TensorFlow's CIFAR-10 tutorial, from the time before residual networks.
It comes from ``tutorials/image/cifar10/cifar10.py`` in github.com/tensorflow/models, after Alex Krizhevsky's
cuda-convnet: two convolutions with local response normalization, then two dense layers. The tutorial crops
its images to 24x24 pixels (1,068,298 parameters); at 32x32 the first dense layer has more weights. The crop,
weight decay of the dense layers alone and averaged weights are part of its training: see the preset
``tutorial_2017``.

``fast_net``: airbench's network, with widths that suit a CPU's vector units.
Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024), arXiv:2404.00498, section 3: a frozen
whitening convolution, then three stages of two 3x3 convolutions with max pooling between them, batch
normalization without a trained scale, and convolutions initialized to the identity. ``fast_residual`` has
the stages of airbench96: a third convolution, and a shortcut around the second and the third; in addition,
squeeze and excitation weights the channels before the shortcut is added.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from labkit.errors import InputError
from labkit.models.layer_factory import LayerFactory

# ---- LeNet

LENET_SMALLEST = 13  # pixels: below, nothing is left of the image behind the second convolution


def lenet(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of LeNet-5 for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision and seed. There is no normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
            Published for 32x32.
        num_classes: number of logits.

    Raises:
        InputError: the images are too small.
    """
    _check_sides(layers, images, "lenet", LENET_SMALLEST)
    x = images
    for stage, filters in enumerate((6, 16), start=1):
        with layers.name_scope(f"stage{stage}"):
            x = layers.activation(layers.biased_conv(x, filters, 5, padding="valid"), "tanh")
            x = layers.average_pool(x, 2)
    with layers.name_scope("stage3"):
        x = layers.flatten(x)
        for units in (120, 84):
            x = layers.activation(layers.dense(x, units), "tanh")
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)


def _check_sides(layers: LayerFactory, images, model: str, smallest: int) -> None:
    """Raise InputError if nothing would be left of images in a network without padding."""
    sides = images.shape[1:3] if layers.data_format == "channels_last" else images.shape[2:]
    if min(sides) < smallest:
        raise InputError(
            f"--model {model} needs images of {smallest}x{smallest} pixels or more, not "
            f"{'x'.join(map(str, sides))}; choose another --model"
        )


DENSE_UNITS = 4096  # of AlexNet (section 3.5) and VGG (table 1, FC-4096)

# ---- AlexNet

# For each convolution: stage, filters, and side of the kernel.
ALEXNET_CONVOLUTIONS = ((1, 64, 11), (2, 192, 5), (3, 384, 3), (3, 256, 3), (3, 256, 3))
ALEXNET_SMALLEST = 63  # pixels: below, nothing is left of the image behind the third pool


def alexnet(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of AlexNet for small ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision and seed. There is no normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout. The
            last feature map is averaged over height and width, so any size works.
        num_classes: number of logits.
    """
    x = _alexnet_features(layers, images, "symmetric", lambda x: layers.max_pool(x, 2, padding="same"))
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def imagenet_alexnet(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of AlexNet at its published size, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision and seed. There is no normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
            Published for 224x224. The first dense layer has a million weights for each position of the last
            feature map, so weights fit one image size only.
        num_classes: number of logits.

    Raises:
        InputError: the images are too small.
    """
    _check_sides(layers, images, "imagenet_alexnet", ALEXNET_SMALLEST)
    x = _alexnet_features(layers, images, 2, lambda x: layers.max_pool(x, 3, 2))
    with layers.name_scope("stage4"):
        x = layers.flatten(x)
        x = layers.dropout(layers.relu(layers.dense(x, DENSE_UNITS)))
        x = layers.relu(layers.dense(x, DENSE_UNITS))  # the head begins with the second dropout
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)


def _alexnet_features(
    layers: LayerFactory, x, first_padding: str | int, pool: Callable[[Any], Any]
) -> keras.KerasTensor:
    """Return the last feature map; the first convolution has ``first_padding``, the others ``same``."""
    for number, (stage, filters, size) in enumerate(ALEXNET_CONVOLUTIONS):
        how = {"padding": "same"} if number else {"padding": first_padding, "stride": 4}
        with layers.name_scope(f"stage{stage}"):
            x = layers.relu(layers.biased_conv(x, filters, size, **how))
            if number in (0, 1, 4):
                x = pool(x)
    return x


# ---- VGG

STAGE_WIDTHS = (64, 128, 256, 512, 512)  # table 1
CONVOLUTIONS = {  # per stage: table 1, configurations A, B, D and E
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a VGG network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout. The
            last feature map is averaged over height and width, so any size works.
        num_layers: 11, 13, 16 or 19.
        num_classes: number of logits.
    """
    x = _convolutions(layers, images, num_layers, lambda x, width: layers.norm_relu(layers.conv(x, width, 3)))
    with layers.name_scope("head"):
        return layers.logits(layers.global_average(x), num_classes)


def imagenet_vgg(layers: LayerFactory, images, *, num_layers: int, num_classes: int) -> keras.KerasTensor:
    """Return the logits of a VGG network at its published size, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision and seed. There is no normalization.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
            Published for 224x224. The first dense layer has 2.1 million weights for each position of the last
            feature map, so weights fit one image size only.
        num_layers: 11, 13, 16 or 19.
        num_classes: number of logits.
    """
    x = _convolutions(
        layers, images, num_layers, lambda x, width: layers.relu(layers.biased_conv(x, width, 3))
    )
    with layers.name_scope(f"stage{len(STAGE_WIDTHS) + 1}"):
        x = layers.flatten(x)
        x = layers.dropout(layers.relu(layers.dense(x, DENSE_UNITS)))
        x = layers.relu(layers.dense(x, DENSE_UNITS))  # the head begins with the second dropout
    with layers.name_scope("head"):
        return layers.logits(x, num_classes)


def _convolutions(layers: LayerFactory, x, num_layers: int, convolve: Callable[[Any, int], Any]):
    """Return the last feature map; ``convolve`` applies a convolution of a width, and what follows it."""
    stages = zip(STAGE_WIDTHS, CONVOLUTIONS[num_layers], strict=True)
    for stage, (width, convolutions) in enumerate(stages, start=1):
        with layers.name_scope(f"stage{stage}"):
            for _ in range(convolutions):
                x = convolve(x, width)
            x = layers.max_pool(x, 2, padding="same")
    return x


# ---- the tutorial's network

# All from the tutorial's inference().
TUTORIAL_CONVOLUTION: dict[str, Any] = {"filters": 64, "kernel_size": 5, "stddev": 5e-2}
TUTORIAL_POOL: dict[str, Any] = {"size": 3, "stride": 2, "padding": "same"}
TUTORIAL_NORMALIZATION: dict[str, Any] = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
TUTORIAL_DENSE: dict[str, Any] = {"stddev": 0.04, "bias": 0.1}
TUTORIAL_LOGITS: dict[str, Any] = {"stddev": 1 / 192}


def tutorial_cnn(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of the tutorial's network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_classes: number of logits.
    """
    with layers.name_scope("stage1"):
        x = layers.relu(layers.biased_conv(images, **TUTORIAL_CONVOLUTION, bias=0.0))
        x = layers.local_response_norm(layers.max_pool(x, **TUTORIAL_POOL), **TUTORIAL_NORMALIZATION)
    with layers.name_scope("stage2"):
        x = layers.relu(layers.biased_conv(x, **TUTORIAL_CONVOLUTION, bias=0.1))
        # Here normalization comes before pooling.
        x = layers.max_pool(layers.local_response_norm(x, **TUTORIAL_NORMALIZATION), **TUTORIAL_POOL)
    with layers.name_scope("stage3"):
        x = layers.flatten(x)
        x = layers.relu(layers.dense(x, 384, **TUTORIAL_DENSE))
        x = layers.relu(layers.dense(x, 192, **TUTORIAL_DENSE))
    with layers.name_scope("head"):
        return layers.logits(x, num_classes, **TUTORIAL_LOGITS)


# ---- airbench's network

FAST_WIDTHS = (64, 256, 256)  # airbench94
FAST_LOGIT_SCALE = 1 / 9  # airbench94


def fast_net(
    layers: LayerFactory,
    images,
    *,
    width_factor: float,
    num_classes: int,
    whitening: bool = True,
    dirac: bool = True,
    activation: str = "gelu",
    residual: bool = False,
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
        residual: whether each stage has a third convolution, squeeze and excitation, and a shortcut.
    """

    def activate(x):
        return layers.relu(x) if activation == "relu" else layers.activation(x, activation)

    def norm_activate(x):
        return activate(layers.norm(x, scale=False))

    with layers.name_scope("stem"):
        x = activate(layers.whitening(images)) if whitening else norm_activate(layers.conv(images, 24, 3))
    for stage, width in enumerate(FAST_WIDTHS, start=1):
        filters = max(16, round(width * width_factor / 16) * 16)
        with layers.name_scope(f"stage{stage}"):
            x = shortcut = norm_activate(layers.max_pool(layers.conv(x, filters, 3, dirac=dirac), 2))
            x = norm_activate(layers.conv(x, filters, 3, dirac=dirac))
            if residual:
                x = layers.norm(layers.conv(x, filters, 3, dirac=dirac), scale=False)
                x = activate(layers.add(layers.squeeze_excite(x), shortcut))
    with layers.name_scope("head"):
        return layers.logits(layers.global_max(x), num_classes, use_bias=False, scale=FAST_LOGIT_SCALE)


# The stages of airbench96 with the widths of ``fast``, and squeeze and excitation.
fast_residual = functools.partial(fast_net, residual=True)
