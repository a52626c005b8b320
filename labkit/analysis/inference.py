"""Intervals and tests for the difference of two trainings or of two groups of them. Needs only NumPy."""

import functools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.975  # the quantile of two-sided intervals of 95 %


@functools.lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution, by numerical integration of its density.

    Args:
        probability: between 0.5 and 1, such as 0.975 for a two-sided interval of 95 %.
        degrees: degrees of freedom, at least 1.
    """
    # With t = √ν tan φ, the density of φ is proportional to cos^(ν − 1) φ on (−π/2, π/2): no tails to cut.
    angle = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    summed = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    reached = 0.5 + 0.5 * summed / summed[-1]
    return math.sqrt(degrees) * math.tan(float(np.interp(probability, reached, angle)))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (divisor ``count`` - 1) over runs.

    ``std`` is None for one run, and NaN where a value isn't finite.
    """

    mean: float
    std: float | None
    count: int


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return the mean and sample standard deviation of the values that aren't None; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = None if len(known) == 1 else math.nan
    if len(known) > 1 and all(map(math.isfinite, known)):
        std = statistics.stdev(known)
    return Spread(float(statistics.mean(known)), std, len(known))  # fmean would round


@dataclass(frozen=True)
class Interval:
    """A mean, or a difference of two, with its confidence interval, and the number of values."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def contains_zero(self) -> bool:
        return self.low <= 0 <= self.high

    def __neg__(self) -> "Interval":
        return Interval(-self.mean, -self.high, -self.low, self.count)

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} points, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"

    def __repr__(self) -> str:
        return f"<{self}, {self.count} values>"


def half_width(deviation: float, count: int) -> float:
    """Return half the width of the 95 % t interval of ``count`` values with this standard deviation."""
    return t_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)


def mean_interval(values: ArrayLike) -> Interval:
    """Return the mean of the values, two at least, with its 95 % t interval.

    For a paired comparison, give the differences, one for each seed.
    """
    mean, variance, count = _moments(values)
    half = half_width(math.sqrt(variance), count)
    return Interval(mean, mean - half, mean + half, count)


def _moments(values: ArrayLike) -> tuple[float, float, int]:
    """Return mean, sample variance and number of values. Equal ones have the variance 0, without rounding."""
    known = np.asarray(values, np.float64).tolist()
    return statistics.mean(known), statistics.variance(known), len(known)


def fold_interval(values: ArrayLike, folds: int) -> Interval:
    """Return the mean of results on folds, two at least, with its corrected 95 % interval.

    The trainings of two folds share most of their images, so their results differ less than those of
    independent trainings. Nadeau and Bengio ("Inference for the generalization error", 2003) therefore take
    1/n + tested / trained of the variance of n results as that of their mean; here the images that a fold is
    tested on are 1 / (folds - 1) of those that it is trained on.

    Args:
        values: of each fold that is known; for a paired comparison, the differences.
        folds: into how many the images were parted, which may be more.
    """
    mean, variance, count = _moments(values)
    half = t_quantile(CONFIDENCE, count - 1) * math.sqrt(variance * (1 / count + 1 / (folds - 1)))
    return Interval(mean, mean - half, mean + half, count)


def welch_interval(first: ArrayLike, second: ArrayLike) -> Interval:
    """Return the mean of ``second`` minus that of ``first``, with its 95 % interval (Welch, 1947).

    The two may have different standard deviations. Each needs two values at least.
    """
    (mean, variance, count), (other, other_variance, others) = map(_moments, (first, second))
    difference, of_mean, of_other = other - mean, variance / count, other_variance / others
    half, total = 0.0, of_mean + of_other
    if total > 0:
        spent = of_mean**2 / (count - 1) + of_other**2 / (others - 1)
        half = t_quantile(CONFIDENCE, total**2 / spent if spent else 1.0) * math.sqrt(total)
    return Interval(difference, difference - half, difference + half, count + others)


def single_interval(values: ArrayLike, single: float) -> Interval:
    """Return how much ``single`` lies above the mean of ``values``, two at least, with its 95 % interval.

    The interval assumes that the source of ``single`` spreads as much as that of ``values``: Student's t test
    of two groups, one of which has one value.
    """
    mean, variance, count = _moments(values)
    difference = float(single - mean)
    half = t_quantile(CONFIDENCE, count - 1) * math.sqrt(variance * (1 + 1 / count))
    return Interval(difference, difference - half, difference + half, count + 1)


def paired_interval(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Interval:
    """Return the accuracy of ``second`` minus that of ``first`` on the same images, with its 95 % interval.

    The interval is of Agresti and Min (2005): half an image is added to each of the four cells, right or
    wrong by either. Unlike the plain one it keeps its promise for few images, too, and isn't empty where the
    two never differ.

    Args:
        first, second: whether each classifies each image correctly, [images], the same images in order.
    """
    lost, won = int((first & ~second).sum()), int((~first & second).sum())
    count = len(first)
    share_lost, share_won = (lost + 0.5) / (count + 2), (won + 0.5) / (count + 2)
    center = share_won - share_lost
    half = t_quantile(CONFIDENCE, 1e5) * math.sqrt((share_lost + share_won - center**2) / (count + 2))
    return Interval((won - lost) / max(count, 1), max(-1.0, center - half), min(1.0, center + half), count)


@dataclass(frozen=True)
class Discordance:
    """Images on which two classifiers differ. ``p``: two-sided, of the exact binomial test."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Discordance:
    """Test whether two classifiers have the same accuracy (McNemar, 1947; exact form).

    Images that both get right, or both wrong, say nothing. If the two are equally good, each of the others is
    a toss of a coin.

    Args:
        first, second: whether each classifies each image correctly, [images], the same images in order.
    """
    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    count, fewer = only_first + only_second, min(only_first, only_second)
    tail, term = 0, 1  # term: the ways to choose k of the images
    for k in range(fewer + 1):
        tail, term = tail + term, term * (count - k) // (k + 1)
    return Discordance(only_first, only_second, min(1.0, float(2 * tail / 2**count)) if count else 1.0)
