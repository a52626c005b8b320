"""Which example each place of an epoch shows: each example once, or as many of each class.

As in ``labkit.data.augment``, each function takes numbers and arrays, or tensors, and returns the same bits.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import mixed_in, named_key, permutation
from labkit.data.namespace import Array, namespace

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
