"""Mixup and CutMix: each example of a batch mixed with another one, and their labels.

As in ``labkit.data.augment``, each function takes numbers and arrays, or tensors, and returns the same bits.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import mixed_in, named_key, permutation, scaled
from labkit.data.namespace import Array, namespace

SHARES = 2**16  # different shares; each is equally likely
_BITS = SHARES.bit_length() - 1
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
    number = xp.shift_right(mixed_in(named_key(seed, "share"), step), 64 - _BITS)
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


def mixed_images(
    own: Array, partner: Array, *, seed: int, step: Array, mixup_alpha: float, cutmix_alpha: float
) -> tuple[Array, Array]:
    """Return the images of a step mixed with their partners', and the share of each example's own image.

    Args:
        own, partner: [n, height, width, channels]; float32 for mixup.
        seed: of the run.
        step: from 0.
        mixup_alpha: above 0 for mixup.
        cutmix_alpha: above 0 for CutMix, where mixup_alpha is 0.
    """
    if not cutmix_alpha:
        share = share_of_step(seed, step, mixup_alpha)
        return mix(share, own, partner), share
    xp = namespace(own)
    height, width = own.shape[1:3]
    (top, bottom), (left, right) = cut_of_step(seed, step, cutmix_alpha, height, width)
    rows, columns = xp.arange(height), xp.arange(width)
    tall, wide = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    pixels = xp.cast((bottom - top) * (right - left), np.float32)
    return xp.where((tall[:, None] & wide)[..., None], partner, own), 1.0 - pixels / float(height * width)


def cut_of_step(
    seed: int, step: Array, alpha: float, height: int, width: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the first and the end of the rows, and of the columns, that come from the partners in a step.

    As Yun et al., 2019, "CutMix" (arXiv:1905.04899, algorithm A1): the centre is uniform, the share of the
    area of a whole rectangle from Beta(alpha, alpha), and what is outside of the image is cut off. All
    examples of a step have one rectangle.

    Args:
        seed: of the run.
        step: from 0.
        alpha: above 0.
        height, width: of the images.
    """
    xp = namespace(step)
    state = mixed_in(named_key(seed, "cutmix"), step)
    number = xp.cast(xp.shift_right(state, 64 - _BITS), np.int64)
    sides = np.sqrt(1.0 - beta_shares(alpha).astype(np.float64))
    ends = []
    for axis, size in enumerate((height, width)):
        half = xp.take((size * sides).astype(np.int32) // 2, number)
        middle = scaled(xp.shift_right(mixed_in(state, xp.uint64(axis)), 32), size)
        ends.append((xp.maximum(middle - half, 0), xp.minimum(middle + half, size)))
    return ends[0], ends[1]


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
