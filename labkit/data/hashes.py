"""Random numbers as pure functions of integers, of arrays as of tensors: hashes, keys, permutations, and the
example that each place of an epoch shows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.namespace import Array, namespace

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


def named_key(seed: int, name: str) -> int:
    """Return a 64-bit key for draws of one kind, independent of every other use of ``seed``.

    Args:
        seed: of a run; or a key, to be divided further.
        name: of the kind, at most 8 letters.
    """
    return mix64(seed, int.from_bytes(name.encode()))


def order_key(seed: int) -> int:
    """Return the 64-bit key of a run's orders of examples."""
    return named_key(seed, "order")


def augmentation_key(seed: int) -> int:
    """Return the 64-bit key for a run's augmentation."""
    return named_key(seed, "dist")


def mixed_in(state: Array | int, value: Array) -> Array:
    """Apply one step of :func:`mix64` to arrays or tensors.

    Args:
        state: uint64, or a key.
        value: integers that broadcast with ``state``.

    Returns:
        The new state, uint64, of the broadcast shape.
    """
    xp = namespace(value if isinstance(state, int) else state)
    with np.errstate(over="ignore"):  # NumPy warns when a single number overflows
        state = xp.uint64(state) if isinstance(state, int) else state
        state = state + xp.cast(value, np.uint64) + xp.uint64(GOLDEN)
        for shift, multiplier in ((30, MULTIPLIER_1), (27, MULTIPLIER_2)):
            state = (state ^ xp.shift_right(state, shift)) * xp.uint64(multiplier)
        return state ^ xp.shift_right(state, 31)


def scaled(bits: Array, count: Array | int) -> Array:
    """Scale 32 random bits in uint64 to int32 from 0 to count − 1; the bias is below count / 2^32."""
    xp = namespace(bits)
    count = xp.uint64(count) if isinstance(count, int) else xp.cast(count, np.uint64)
    return xp.cast(xp.shift_right(bits * count, 32), np.int32)


def drawn(key: int, epoch: Array, index: Array, count: int) -> Array:
    """Draw a number from 0 to count − 1 for each example, int32 [n]."""
    state = mixed_in(mixed_in(key, epoch), index)
    return scaled(namespace(state).shift_right(state, 32), count)


def permutation(size: int, key: int, epoch: Array) -> Array:
    """Return an epoch's random order of `size` items, found by sorting their hashes.

    ``tf.random.experimental.index_shuffle`` would need no sorting, but in TensorFlow 2.21 it fails a
    chi-square test of uniformity for sizes of 64 and 97, even with twice its rounds.

    Args:
        size: the number of items.
        key: unsigned 64-bit; together with the epoch it determines the order.
        epoch: integers [...]; a tensor for an order that is a tensor.

    Returns:
        int64 [..., size], a permutation of 0 … size − 1.
    """
    xp = namespace(epoch)
    state = mixed_in(key, epoch)
    return xp.descending(mixed_in(state[..., None], xp.arange(size)))


_EPOCHS = 2**20 + 1  # more than a run has, and odd


class Balance(NamedTuple):
    """What an epoch with as many examples of each class is drawn from.

    Each class is repeated until there are enough of it. Every repetition is a block, which is shuffled by
    itself; of the last block of a class only the first examples are taken.

    ``shown``: int64 [m], what ``epoch_order`` returns for each place of the blocks. ``blocks``: uint64 [m],
    the number of the place's block, highest first, in the upper bits. ``free``: how many bits are below it.
    ``taken``: int64 [n], the places that are taken once the blocks are shuffled.
    """

    shown: NDArray[np.int64]
    blocks: NDArray[np.uint64]
    free: int
    taken: NDArray[np.int64]


def balance_of(labels: NDArray[np.int32]) -> Balance:
    """Return what balanced epochs are drawn from. Their length is that of the split.

    Where this isn't a multiple of the number of classes, the first classes have one example more.

    Args:
        labels: int32 [n], of the training split.
    """
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    share, more = divmod(len(labels), len(members))
    shown, sizes, taken, start = [], [], [], 0
    for number, own in enumerate(members):
        wanted = share + (number < more)
        repeats = -(-wanted // len(own))
        shown += [own + repeat * len(labels) for repeat in range(repeats)]
        sizes += [len(own)] * repeats
        taken.append(start + np.arange(wanted))
        start += len(own) * repeats
    free = 63 - len(sizes).bit_length()
    blocks = np.repeat(np.arange(len(sizes))[::-1], sizes).astype(np.uint64) << np.uint64(free)
    return Balance(np.concatenate(shown), blocks, free, np.concatenate(taken))


def epoch_order(size: int, key: int, epoch: Array, balance: Balance | None = None) -> Array:
    """Return what each place of an epoch shows, int64 [size]: an example's row.

    A balanced epoch may show an example several times; to each further time, ``size`` is added once more.

    Args:
        size: the number of examples.
        key: the result of ``labkit.data.hashes.order_key``.
        epoch: an integer; a tensor for an order that is a tensor.
        balance: for as many examples of each class; None shows each example once.
    """
    order = permutation(size, key, epoch)
    if balance is None:
        return order
    xp = namespace(epoch)
    state = mixed_in(named_key(key, "balance"), epoch)
    draws = mixed_in(state[..., None], xp.arange(len(balance.shown)))
    shuffled = xp.descending(xp.shift_right(draws, 64 - balance.free) + balance.blocks)
    return xp.take(balance.shown, xp.take(xp.take(shuffled, balance.taken), order))


def draws_of(epoch: Array, shown: Array, size: int) -> Array:
    """Return what stands for the epoch in the augmentation of examples, so that each time differs: int64 [n].

    The second time of an epoch is odd where the first one is even, as another epoch would be, so that
    alternating flips alternate.

    Args:
        epoch: int64 [n], of each example.
        shown: int64 [n], from ``epoch_order``.
        size: the number of examples.
    """
    return epoch + shown // size * _EPOCHS
