"""Muon: updates of convolutions whose directions all have about the same length.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
https://kellerjordan.github.io/posts/muon/, in the form that airbench's record of CIFAR-10 has
(``airbench94_muon.py``): the kernels are kept at one length besides, so that the learning rate alone says how
far an update turns them.
"""

from collections.abc import Collection

import keras
import tensorflow as tf

from labkit.errors import InputError
from labkit.models.layers import BatchNormalization
from labkit.models.stages import layers_with_weights, stages

__all__ = ["check_muon", "kernels_of_muon", "move", "orthogonalized"]

# The quintic iteration with the steepest slope at zero. Its fixed points are no single value: the singular
# values end between about 0.7 and 1.2, which serves as well as 1 (ibid.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3  # airbench94_muon
NORMS = (BatchNormalization, keras.layers.BatchNormalization)


def kernels_of_muon(model: keras.Model) -> list[keras.Variable]:
    """Return the trained kernels that muon moves: of convolutions without a bias, before a normalization.

    In a ResNet v2 it follows behind the sum of the block. Where none does, a kernel's length means something,
    and can't be set. A depthwise convolution is no matrix: each of its filters sees one channel.
    """
    return [
        layer.kernel
        for layer in layers_with_weights(model)
        if isinstance(layer, keras.layers.Conv2D)
        and not isinstance(layer, keras.layers.DepthwiseConv2D)
        and not layer.use_bias
        and layer.kernel.trainable
    ]


def check_muon(model: keras.Model, frozen: Collection[str]) -> None:
    """Raise InputError where muon has no kernel to move, or moves one before a frozen normalization.

    Args:
        model: the network.
        frozen: names of layers that aren't trained (``Freezing.at``).
    """
    moved = {id(kernel) for kernel in kernels_of_muon(model)}
    if not moved:
        raise InputError(
            f"--optimizer muon moves convolutions without a bias, before a normalization; {model.name} "
            "has none; take sgd"
        )
    for stage, layers in stages(model).items():
        norms = [layer.name for layer in layers if isinstance(layer, NORMS)]
        trained = [layer for layer in layers if layer.name not in frozen]
        if any(name in frozen for name in norms) and any(
            id(weight) in moved for layer in trained for weight in layer.trainable_variables
        ):
            raise InputError(
                f"--freeze holds a normalization of {stage} and not its convolutions, whose lengths "
                "--optimizer muon changes; freeze the whole stage, or take sgd"
            )


def orthogonalized(matrix: tf.Tensor, iterations: int = ITERATIONS) -> tf.Tensor:
    """Return about the nearest matrix with orthonormal rows or columns, of ``matrix``'s shape and dtype.

    Newton and Schulz's iteration: with singular values U S V^T of ``matrix``, S goes towards ones.

    Args:
        matrix: floating [m, n], static shape.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = tf.transpose(matrix) if is_tall else matrix  # the smaller product of a matrix with itself
    x /= tf.norm(x) + 1e-7
    for _ in range(iterations):
        gram = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
    return tf.transpose(x) if is_tall else x


def move(variable, velocity, gradient, learning_rate, momentum: float):
    """Update a convolution's kernel and its velocity; return the operation.

    With gradient g, velocity v and weight w of k filters::

        v = m v + g;  w = w sqrt(k) / |w| - r orthogonalized(g + m v)

    Args:
        variable: float [height, width, channels, k]; ``velocity`` and ``gradient`` are of its shape.
        learning_rate: scalar.
        momentum: m.
    """
    filters = variable.shape[-1]
    length = tf.maximum(tf.norm(variable), 1e-12)  # a kernel may begin at zero
    velocity = velocity.assign(momentum * velocity + gradient)
    ahead = tf.reshape(gradient + momentum * velocity, [-1, filters])
    direction = tf.reshape(orthogonalized(ahead), variable.shape)
    return variable.assign(variable * (filters**0.5 / length) - learning_rate * direction)
