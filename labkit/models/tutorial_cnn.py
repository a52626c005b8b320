"""The network of TensorFlow's CIFAR-10 tutorial, from the time before residual networks were common.

It comes from ``tutorials/image/cifar10/cifar10.py`` in github.com/tensorflow/models, after Alex Krizhevsky's
cuda-convnet: two convolutions with local response normalization, then two dense layers. The tutorial crops
its images to 24x24 pixels (1,068,298 parameters); at 32x32 the first dense layer has more weights. The crop,
weight decay of the dense layers alone and averaged weights are part of its training: see the preset
``tutorial_2017``.
"""

from typing import Any

import keras

from labkit.models.layer_factory import LayerFactory

__all__ = ["tutorial_cnn"]

# All from the tutorial's inference().
CONVOLUTION: dict[str, Any] = {"filters": 64, "kernel_size": 5, "stddev": 5e-2}
POOL: dict[str, Any] = {"size": 3, "stride": 2, "padding": "same"}
NORMALIZATION: dict[str, Any] = {"depth_radius": 4, "bias": 1.0, "alpha": 0.001 / 9.0, "beta": 0.75}
DENSE: dict[str, Any] = {"stddev": 0.04, "bias": 0.1}
LOGITS: dict[str, Any] = {"stddev": 1 / 192}


def tutorial_cnn(layers: LayerFactory, images, *, num_classes: int) -> keras.KerasTensor:
    """Return the logits of the tutorial's network for ``images``, float32 [batch, num_classes].

    Args:
        layers: makes the layers; it decides layout, precision, normalization and seed.
        images: float [batch, height, width, channels], or channels first if the factory uses that layout.
        num_classes: number of logits.
    """
    with layers.name_scope("stage1"):
        x = layers.relu(layers.biased_conv(images, **CONVOLUTION, bias=0.0))
        x = layers.local_response_norm(layers.max_pool(x, **POOL), **NORMALIZATION)
    with layers.name_scope("stage2"):
        x = layers.relu(layers.biased_conv(x, **CONVOLUTION, bias=0.1))
        # Here normalization comes before pooling.
        x = layers.max_pool(layers.local_response_norm(x, **NORMALIZATION), **POOL)
    with layers.name_scope("stage3"):
        x = layers.flatten(x)
        x = layers.relu(layers.dense(x, 384, **DENSE))
        x = layers.relu(layers.dense(x, 192, **DENSE))
    with layers.name_scope("head"):
        return layers.logits(x, num_classes, **LOGITS)
