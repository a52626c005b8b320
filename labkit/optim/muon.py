"""Muon: update the kernels of convolutions by the orthogonalized momentum.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
https://kellerjordan.github.io/posts/muon/, in the variant of airbench's CIFAR-10 record
(``airbench94_muon.py``). In this variant each update first rescales the kernel to a fixed norm, so the
learning rate alone decides the relative size of the update.
"""

from collections.abc import Collection

import keras
import tensorflow as tf

from labkit.errors import InputError
from labkit.models.freezing import layers_with_weights, stages
from labkit.models.layers import BatchNormalization

# The quintic iteration with the steepest slope at zero. The singular values do not converge to 1 but end
# between about 0.7 and 1.2, which works as well (ibid.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3  # airbench94_muon
NORMS = (BatchNormalization, keras.layers.BatchNormalization)


def muon_kernels(model: keras.Model) -> list[keras.Variable]:
    """Return the trained kernels that Muon updates: those of convolutions without a bias.

    In labkit's networks these are the convolutions followed by a normalization (in a ResNet v2, after the sum
    of the block). Muon sets a kernel's norm, which has no effect only if a normalization follows. Depthwise
    convolutions are excluded: each of their filters uses one channel, so their kernels are not matrices.
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
    """Check that Muon can train the network.

    Args:
        model: the network.
        frozen: names of layers that aren't trained (``Freezing.at``).

    Raises:
        InputError: there is no kernel for Muon, or a normalization is frozen while Muon updates its stage.
    """
    kernels = {id(kernel) for kernel in muon_kernels(model)}
    if not kernels:
        raise InputError(
            f"--optimizer muon trains convolutions without a bias that a normalization follows; {model.name} "
            "has none; choose --optimizer sgd"
        )
    for stage, layers in stages(model).items():
        norms = [layer.name for layer in layers if isinstance(layer, NORMS)]
        trained = [layer for layer in layers if layer.name not in frozen]
        if any(name in frozen for name in norms) and any(
            id(weight) in kernels for layer in trained for weight in layer.trainable_variables
        ):
            raise InputError(
                f"--freeze names a normalization of {stage} but not its convolutions, whose norms "
                "--optimizer muon changes; freeze the whole stage, or choose --optimizer sgd"
            )


def orthogonalized(matrix: tf.Tensor, iterations: int = ITERATIONS) -> tf.Tensor:
    """Return approximately the nearest matrix with orthonormal rows or columns.

    The Newton-Schulz iteration, which moves all singular values of ``matrix`` towards 1.

    Args:
        matrix: float [m, n] with static shape.
        iterations: number of iterations.

    Returns:
        A matrix of the same shape and dtype.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = tf.transpose(matrix) if is_tall else matrix  # makes x x^T the smaller of the two products
    x /= tf.norm(x) + 1e-7
    for _ in range(iterations):
        gram = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
    return tf.transpose(x) if is_tall else x


def update_kernel(variable, velocity, gradient, learning_rate, momentum: float):
    """Update a convolution's kernel and its velocity, and return the operation.

    With gradient g, velocity v and weight w of k filters::

        v = m v + g;  w = w sqrt(k) / |w| - r orthogonalized(g + m v)

    Args:
        variable: float [height, width, channels, k].
        velocity: variable of the same shape.
        gradient: tensor of the same shape.
        learning_rate: scalar.
        momentum: m.
    """
    filters = variable.shape[-1]
    norm = tf.maximum(tf.norm(variable), 1e-12)  # a kernel may be initialized to zero
    velocity = velocity.assign(momentum * velocity + gradient)
    nesterov = tf.reshape(gradient + momentum * velocity, [-1, filters])
    direction = tf.reshape(orthogonalized(nesterov), variable.shape)
    return variable.assign(variable * (filters**0.5 / norm) - learning_rate * direction)
