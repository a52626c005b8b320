"""Random numbers as a function of integers: hashes and keyed permutations, without any generator's state."""

import tensorflow as tf

__all__ = ["mix64", "mix64_tensor", "permute", "seed_words"]

_MASK = (1 << 64) - 1
# splitmix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", with the
# constants of Vigna's public-domain splitmix64.c.
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_ROUNDS = 8


def mix64(*values: int) -> int:
    """Hash integers to one unsigned 64-bit integer: splitmix64's finaliser, folded over `values`."""
    state = 0
    for value in values:
        state = (state + (value & _MASK) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _MULTIPLIER_1) & _MASK
        state = ((state ^ (state >> 27)) * _MULTIPLIER_2) & _MASK
        state ^= state >> 31
    return state


def mix64_tensor(state: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """One round of :func:`mix64` on uint64 tensors."""
    state = state + value + tf.constant(_GOLDEN, tf.uint64)
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2)):
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64)))
        state = state * tf.constant(multiplier, tf.uint64)
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(31, tf.uint64)))


def seed_words(key: int, epoch: tf.Tensor) -> tf.Tensor:
    """Hash a key with epochs int64 [...] to words uint32 [..., 2]."""
    return tf.bitcast(mix64_tensor(tf.constant(key, tf.uint64), tf.cast(epoch, tf.uint64)), tf.uint32)


def permute(index: tf.Tensor, size: int, key: int, epoch: tf.Tensor) -> tf.Tensor:
    """Look up places in the permutation of 0 … size − 1 that (key, epoch) draw, each in constant time.

    A block cipher on just enough bits, applied again where it leads beyond `size` (cycle walking).

    Args:
        index: int64 [n] in 0 … size − 1.
        size: the number of things permuted.
        key: unsigned 64-bit.
        epoch: int64, scalar or [n].

    Returns:
        int64 [n]; for one epoch, different places give different results.
    """
    words = seed_words(key, epoch)
    # Not tf.random.experimental.index_shuffle: it pads a batch of seeds along the wrong axis, and fixes the
    # rounds at 4.
    seed = tf.concat([words, tf.zeros_like(words[..., :1])], axis=-1)
    last = tf.constant(size - 1, tf.int64)
    return tf.raw_ops.RandomIndexShuffle(index=index, seed=seed, max_index=last, rounds=_ROUNDS)
