"""Muon: updates of convolutions whose directions all have about the same length.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
https://kellerjordan.github.io/posts/muon/, in the form that airbench's record of CIFAR-10 has
(``airbench94_muon.py``): the kernels are kept at one length besides, so that the learning rate alone says how
far an update turns them.
"""

import tensorflow as tf

__all__ = ["is_moved_by_muon", "move", "orthogonalized"]

# The quintic iteration with the steepest slope at zero. Its fixed points are no single value: the singular
# values end between about 0.7 and 1.2, which serves as well as 1 (ibid.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3  # airbench94_muon


def is_moved_by_muon(shape: tuple[int, ...]) -> bool:
    """Return whether a weight of this shape is a convolution's kernel."""
    return len(shape) == 4


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
    velocity = velocity.assign(momentum * velocity + gradient)
    ahead = tf.reshape(gradient + momentum * velocity, [-1, filters])
    direction = tf.reshape(orthogonalized(ahead), variable.shape)
    return variable.assign(variable * (filters**0.5 / tf.norm(variable)) - learning_rate * direction)
