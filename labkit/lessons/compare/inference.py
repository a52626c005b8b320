"""What a few trainings can tell: intervals, McNemar's test, the number of seeds, and selection bias."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Discordance",
    "Interval",
    "coverage",
    "detection",
    "half_width",
    "mcnemar",
    "mean_interval",
    "selection_bias",
    "t_quantile",
]


def t_quantile(probability: float, degrees: int) -> float:
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
class Interval:
    """A mean with its confidence interval, and the number of values."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def contains_zero(self) -> bool:
        return self.low <= 0 <= self.high

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} points, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f}"

    def __repr__(self) -> str:
        return f"<{self}, {self.count} values>"


def half_width(deviation: float, count: int) -> float:
    """Return half the width of the 95 % t interval of ``count`` values with this standard deviation."""
    return t_quantile(0.975, count - 1) * deviation / math.sqrt(count)


def mean_interval(values: ArrayLike) -> Interval:
    """Return the mean of the values, two at least, with its 95 % t interval.

    For a paired comparison, give the differences, one for each seed.
    """
    found = np.asarray(values, np.float64)
    mean, half = float(found.mean()), half_width(float(found.std(ddof=1)), len(found))
    return Interval(mean, mean - half, mean + half, len(found))


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
    tail = sum(math.comb(count, k) for k in range(fewer + 1))
    return Discordance(only_first, only_second, min(1.0, float(2 * tail / 2**count)) if count else 1.0)


def coverage(counts: Sequence[int], *, experiments: int = 20000) -> dict[str, NDArray[np.float64]]:
    """Return how often intervals "of 95 %" contain the true mean, by method, each [counts].

    Args:
        counts: numbers of seeds. Each experiment draws that many values from a normal distribution.
        experiments: for each number of seeds.
    """
    random = np.random.default_rng(0)
    normal = statistics.NormalDist().inv_cdf(0.975)
    found: dict[str, list[float]] = {"t": [], "1.96 standard errors": [], "1 standard error": []}
    for count in counts:
        values = random.normal(size=(experiments, count))
        distance = np.abs(values.mean(1)) / (values.std(1, ddof=1) / math.sqrt(count))
        for name, limit in zip(found, (t_quantile(0.975, count - 1), normal, 1.0), strict=True):
            found[name].append(float((distance <= limit).mean()))
    return {name: np.array(values) for name, values in found.items()}


def detection(
    deviation: float, differences: Sequence[float], counts: Sequence[int], *, experiments: int = 4000
) -> NDArray[np.float64]:
    """Return how often the 95 % interval excludes zero, [differences, counts].

    Args:
        deviation: standard deviation of the paired differences.
        differences: true differences of the two recipes.
        counts: numbers of seeds.
        experiments: simulated for each.
    """
    random = np.random.default_rng(0)
    found = np.zeros((len(differences), len(counts)))
    for column, count in enumerate(counts):
        noise = random.normal(0, deviation, (experiments, count))
        half = t_quantile(0.975, count - 1) * noise.std(1, ddof=1) / math.sqrt(count)
        for row, difference in enumerate(differences):
            found[row, column] = (np.abs(noise.mean(1) + difference) > half).mean()
    return found


def selection_bias(right: NDArray[np.bool_], images: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Choose the best of 1, 2, … classifiers on some images, and score it there and on the other images.

    Args:
        right: whether each classifier classifies each image correctly, [classifiers, all images].
        images: how many images, drawn at random, the choice is made on.

    Returns the accuracy of the chosen one on the images of the choice, and on the others, each
    float64 [classifiers], entry k − 1 for the best of k: means over 300 random orders.
    """
    random = np.random.default_rng(0)
    count, draws = len(right), 300
    reported, fresh = np.zeros((2, count))
    for _ in range(draws):
        order = random.permutation(right.shape[1])
        shuffled = right[random.permutation(count)]
        seen, other = (shuffled[:, part].mean(1) for part in (order[:images], order[images:]))
        best = [int(seen[:k].argmax()) for k in range(1, count + 1)]
        reported += seen[best]
        fresh += other[best]
    return reported / draws, fresh / draws
