"""mixup: train on weighted means of two images and of their labels."""

import tensorflow as tf

from labkit.data.numpy_batch.mixing import SHARES, beta_shares, partner_key, share_key
from labkit.data.tensor_hashes import mix64_tensor, permutation

__all__ = ["mix", "partners_of_step", "share_of_step", "soft_targets"]


def partners_of_step(seed: int, step: tf.Tensor, global_batch_size: int) -> tf.Tensor:
    """Return the position in the global batch of each example's partner: a permutation, int64 [n].

    Args:
        seed: of the run.
        step: int64 scalar, from 0.
        global_batch_size: n, over all replicas.
    """
    return permutation(global_batch_size, partner_key(seed), step)


def share_of_step(seed: int, step: tf.Tensor, alpha: float) -> tf.Tensor:
    """Return the share of each example's own image in a step, a float32 scalar from Beta(alpha, alpha).

    Args:
        seed: of the run.
        step: int64 scalar, from 0.
        alpha: above 0.
    """
    state = mix64_tensor(tf.constant(share_key(seed), tf.uint64), step)
    bits = SHARES.bit_length() - 1
    number = tf.bitwise.right_shift(state, tf.constant(64 - bits, tf.uint64))
    return tf.gather(tf.constant(beta_shares(alpha)), tf.cast(number, tf.int64))


def soft_targets(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return labels as probabilities, float32 [n, num_classes].

    Args:
        labels: int32 [n], or zeros and ones [n, num_classes].
        num_classes: of the data set.
    """
    if labels.shape.rank == 2:
        return tf.cast(labels, tf.float32)
    return tf.one_hot(labels, num_classes)


def mix(share: tf.Tensor, own: tf.Tensor, partner: tf.Tensor) -> tf.Tensor:
    """Return share * own + (1 - share) * partner (Zhang et al., 2017, arXiv:1710.09412, section 2).

    Args:
        share: float32 scalar.
        own, partner: float32 [n, ...], images or targets.
    """
    return share * own + (1.0 - share) * partner
