"""Random numbers as pure functions of integers: the hash, the keys, and orders of examples, with NumPy."""

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GOLDEN",
    "MULTIPLIER_1",
    "MULTIPLIER_2",
    "brightness_key",
    "contrast_key",
    "crop_key",
    "cutout_key",
    "distortion_key",
    "mix64",
    "mix64_array",
    "order_key",
    "order_of_epoch",
]

_MASK = (1 << 64) - 1
# splitmix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", with the
# constants of Vigna's public-domain splitmix64.c.
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB


def mix64(*values: int) -> int:
    """Hash integers to one unsigned 64-bit integer, applying splitmix64's finalizer to each in turn."""
    state = 0
    for value in values:
        state = (state + (value & _MASK) + GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * MULTIPLIER_1) & _MASK
        state = ((state ^ (state >> 27)) * MULTIPLIER_2) & _MASK
        state ^= state >> 31
    return state


def order_key(seed: int) -> int:
    """Return the 64-bit key of a run's orders of examples."""
    return mix64(seed, 0x6F72646572)  # "order" in ASCII


def distortion_key(seed: int) -> int:
    """Return the 64-bit key for a run's distortions, independent of every other use of `seed`."""
    return mix64(seed, 0x64697374)  # "dist" in ASCII


def crop_key(key: int) -> int:
    """Return the 64-bit key of the parts that random-resized-crop keeps.

    Args:
        key: the result of :func:`distortion_key`.
    """
    return mix64(key, 0x63726F70)  # "crop" in ASCII


def cutout_key(key: int) -> int:
    """Return the 64-bit key of the squares that cutout covers.

    Args:
        key: the result of :func:`distortion_key`.
    """
    return mix64(key, 0x637574)  # "cut" in ASCII


def brightness_key(key: int) -> int:
    """Return the 64-bit key of what is added to images; ``key``: of :func:`distortion_key`."""
    return mix64(key, 0x627269676874)  # "bright" in ASCII


def contrast_key(key: int) -> int:
    """Return the 64-bit key of the factors of contrast; ``key``: of :func:`distortion_key`."""
    return mix64(key, 0x636F6E7472617374)  # "contrast" in ASCII


def mix64_array(state: NDArray[np.uint64] | int, value: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Apply one step of :func:`mix64` to arrays that broadcast together; returns their shape."""
    # One-element arrays instead of scalars, because NumPy warns when a scalar overflows.
    mixed = np.asarray([state] if isinstance(state, int) else state, np.uint64)
    mixed = mixed + np.asarray(value).astype(np.uint64) + np.asarray([GOLDEN], np.uint64)
    for shift, multiplier in ((30, MULTIPLIER_1), (27, MULTIPLIER_2)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.asarray([multiplier], np.uint64)
    return mixed ^ (mixed >> np.uint64(31))


def order_of_epoch(size: int, key: int, epoch: int) -> NDArray[np.int64]:
    """Return an epoch's random order of `size` items, as ``labkit.data.tensor_hashes.permutation`` does.

    Args:
        size: the number of items.
        key: unsigned 64-bit; together with the epoch it determines the order.
        epoch: from 0.

    Returns:
        int64 [size], a permutation of 0 … size − 1.
    """
    state = mix64_array(key, np.asarray([epoch], np.int64))
    hashes = mix64_array(state, np.arange(size)).view(np.int64)
    return np.argsort(~hashes, kind="stable")  # the complement reverses the order without overflow
