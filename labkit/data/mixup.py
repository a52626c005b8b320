"""Mixup: each example of a batch mixed with another one, and their labels.

As in ``labkit.data.augment``, each function takes numbers and arrays, or tensors, and returns the same bits.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import mixed_in, named_key, permutation
from labkit.data.namespace import Array, namespace

SHARES = 2**16  # different shares; each is equally likely
_POINTS = 100_001  # of the numerical integration


def partners_of_step(seed: int, step: Array, global_batch_size: int) -> Array:
    """Return the position in the global batch of each example's partner: a permutation, int64 [n].

    Args:
        seed: of the run.
        step: from 0.
        global_batch_size: n, over all replicas.
    """
    return permutation(global_batch_size, named_key(seed, "mixed"), step)


def share_of_step(seed: int, step: Array, alpha: float) -> Array:
    """Return the share of each example's own image in a step, a float32 from Beta(alpha, alpha).

    Args:
        seed: of the run.
        step: from 0.
        alpha: above 0.
    """
    xp = namespace(step)
    bits = SHARES.bit_length() - 1
    number = xp.shift_right(mixed_in(named_key(seed, "share"), step), 64 - bits)
    return xp.take(beta_shares(alpha), xp.cast(number, np.int64))


@functools.lru_cache(8)
def beta_shares(alpha: float) -> NDArray[np.float32]:
    """Return ``SHARES`` quantiles of the distribution Beta(alpha, alpha), ascending, float32.

    They are those of probabilities in the middle of equal parts, by numerical integration of the density
    x^(a - 1) (1 - x)^(a - 1) from 0 to 1/2; the other half mirrors it. For a below 1, where the density is
    infinite at 0, x^a is the variable.

    Args:
        alpha: above 0.
    """
    power = min(alpha, 1.0)
    points = np.linspace(0.0, 0.5**power, _POINTS)
    x = points ** (1.0 / power)
    with np.errstate(divide="ignore"):
        logarithms = (alpha - power) * np.log(x) if alpha > power else np.zeros_like(x)
    density = np.exp(logarithms + (alpha - 1.0) * np.log1p(-x))
    summed = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    wanted = (np.arange(SHARES // 2) + 0.5) / SHARES
    lower = np.interp(wanted, 0.5 * summed / summed[-1], points) ** (1.0 / power)
    return np.concatenate([lower, 1.0 - lower[::-1]]).astype(np.float32)


def soft_targets(labels: Array, num_classes: int) -> Array:
    """Return labels as probabilities, float32 [n, num_classes].

    Args:
        labels: int32 [n], or zeros and ones [n, num_classes].
        num_classes: of the data set.
    """
    xp = namespace(labels)
    several = len(labels.shape) == 2
    return xp.cast(labels if several else labels[:, None] == xp.arange(num_classes), np.float32)


def mix(share: Array, own: Array, partner: Array) -> Array:
    """Return share * own + (1 - share) * partner (Zhang et al., 2017, arXiv:1710.09412, section 2).

    Args:
        share: a float32.
        own, partner: float32 [n, ...], images or targets.
    """
    return share * own + (1.0 - share) * partner
