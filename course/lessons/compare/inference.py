"""What a few trainings can tell, by simulation: intervals, the number of seeds, and selection bias."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.inference import t_quantile


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
