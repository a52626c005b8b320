"""Random numbers as pure functions of integers: hashes and permutations of tensors, without generator state.

``labkit.data.hashes`` has the same with NumPy.
"""

import tensorflow as tf

from labkit.data.hashes import GOLDEN, MULTIPLIER_1, MULTIPLIER_2, mix64

__all__ = ["mix64", "mix64_tensor", "permutation"]


def mix64_tensor(state: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Apply one step of :func:`mix64` to tensors.

    Args:
        state: uint64 tensor.
        value: integer tensor; must broadcast with `state`.

    Returns:
        The new state, uint64, of the broadcast shape.
    """
    state = state + tf.cast(value, tf.uint64) + tf.constant(GOLDEN, tf.uint64)
    for shift, multiplier in ((30, MULTIPLIER_1), (27, MULTIPLIER_2)):
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64)))
        state = state * tf.constant(multiplier, tf.uint64)
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(31, tf.uint64)))


def permutation(size: int, key: int, epoch: tf.Tensor) -> tf.Tensor:
    """Return an epoch's random order of `size` items, found by sorting their hashes.

    ``tf.random.experimental.index_shuffle`` would need no sorting, but in TensorFlow 2.21 it fails a
    chi-square test of uniformity for sizes of 64 and 97, even with twice its rounds.

    Args:
        size: the number of items.
        key: unsigned 64-bit; together with the epoch it determines the order.
        epoch: int64 [...].

    Returns:
        int64 [..., size], a permutation of 0 … size − 1.
    """
    state = mix64_tensor(tf.constant(key, tf.uint64), epoch)
    hashes = mix64_tensor(state[..., None], tf.range(size, dtype=tf.int64))
    return tf.cast(tf.math.top_k(tf.bitcast(hashes, tf.int64), size).indices, tf.int64)
