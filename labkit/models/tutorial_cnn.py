"""The network of TensorFlow's CIFAR-10 tutorial, of the years before residual networks were everywhere.

``tutorials/image/cifar10/cifar10.py`` in github.com/tensorflow/models, after Alex Krizhevsky's cuda-convnet:
two convolutions with local response normalization, two dense layers. The tutorial crops its images to 24x24
pixels (1,068,298 parameters); this takes what the data set has, and at 32x32 the first dense layer has more
weights. Decay of the dense layers alone and averaged weights belong to the tutorial's training, not to it.
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
    """Return the logits, float32 [batch, num_classes], of the tutorial's network over ``images``.

    Args:
        layers: makes the layers, with layout, precision, normalization and seed decided.
        images: float [batch, height, width, channels], or channels first where the factory says so.
        num_classes: of the logits.
    """
    with layers.part("stage1"):
        x = layers.relu(layers.biased_conv(images, **CONVOLUTION, bias=0.0))
    x = layers.local_response_norm(layers.max_pool(x, **POOL), **NORMALIZATION)
    with layers.part("stage2"):
        x = layers.relu(layers.biased_conv(x, **CONVOLUTION, bias=0.1))
    # Normalization and pool stand the other way round here.
    x = layers.max_pool(layers.local_response_norm(x, **NORMALIZATION), **POOL)
    x = layers.flatten(x)
    with layers.part("stage3"):
        x = layers.relu(layers.dense(x, 384, **DENSE))
        x = layers.relu(layers.dense(x, 192, **DENSE))
    return layers.logits(x, num_classes, **LOGITS)
