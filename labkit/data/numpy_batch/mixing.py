"""The draws of mixup, and the mixed batch of a step, with NumPy."""

import functools

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import mix64, mix64_array, order_of_epoch

__all__ = ["SHARES", "beta_shares", "mixed", "partner_key", "partners_of", "share_key", "share_of"]

SHARES = 2**16  # different shares; each is equally likely
_POINTS = 100_001  # of the numerical integration


def partner_key(seed: int) -> int:
    """Return the 64-bit key of the partners that mixup mixes examples with."""
    return mix64(seed, 0x6D69786564)  # "mixed" in ASCII


def share_key(seed: int) -> int:
    """Return the 64-bit key of the shares that mixup mixes with."""
    return mix64(seed, 0x7368617265)  # "share" in ASCII


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


def partners_of(seed: int, step_index: int, batch_size: int) -> NDArray[np.int64]:
    """Return the position in the batch of each example's partner, int64 [n]; ``step_index`` from 0."""
    return order_of_epoch(batch_size, partner_key(seed), step_index)


def share_of(seed: int, step_index: int, alpha: float) -> np.float32:
    """Return the share of each example's own image in a step; ``step_index`` from 0."""
    [state] = mix64_array(share_key(seed), np.asarray([step_index]))
    bits = SHARES.bit_length() - 1
    return np.float32(beta_shares(alpha)[int(state >> np.uint64(64 - bits))])


def mixed(share: np.float32, own: NDArray[np.float32], partner: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return share * own + (1 - share) * partner; see ``labkit.data.augment.mix``."""
    return share * own + (np.float32(1.0) - share) * partner
