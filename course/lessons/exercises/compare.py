"""The tests of lesson 08's exercises: paired intervals, McNemar's test, the best of k, a report's flaws."""

import math
import statistics

import numpy as np
from numpy.typing import NDArray

from course.lessons.verdict import Wrong, a_function, a_number, an_array, draws, explain, shown, tests
from labkit.analysis.inference import t_quantile


@tests("08.1", "the paired interval of two recipes")
def _paired_interval(answer: object) -> str:
    function = a_function(answer)
    random = draws(81)
    for count in (3, 5, 8, 20):
        common = random.normal(0.6, 0.05, count)  # what a seed does to both recipes
        first = common + random.normal(0.01, 0.01, count)
        second = common + random.normal(0, 0.01, count)
        found = an_array(function(first.copy(), second.copy()), (3,), "what your function returns")
        _judge_interval(found, first, second)
    return "mean and interval of the paired differences, for 3 to 20 seeds"


def _judge_interval(found: NDArray[np.float64], first: NDArray, second: NDArray) -> None:
    differences, count = first - second, len(first)
    mean, low, high = found
    if np.isclose(mean, -differences.mean()):
        raise Wrong("the sign is reversed; the difference is the first minus the second")
    if not np.isclose(mean, differences.mean()):
        raise Wrong("the first value isn't the mean of first − second; return (mean, low, high)")
    if not np.isclose(high - mean, mean - low) or high < low:
        raise Wrong("low and high should be the mean minus and plus the same width; return (mean, low, high)")
    deviation, half, t = differences.std(ddof=1), (high - low) / 2, t_quantile(0.975, count - 1)
    right = t * deviation / math.sqrt(count)
    unpaired = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / count)
    if np.isclose(half, right, rtol=1e-3):
        return
    one_sided, one_too_many = t_quantile(0.95, count - 1), t_quantile(0.975, count)
    in_errors = half * math.sqrt(count) / deviation
    explain(in_errors, (
        (t * math.sqrt((count - 1) / count), "with few seeds, the variance divides by n − 1 (ddof=1), not n"),
        (t * math.sqrt(count), "this is the spread of one difference; their mean's is √n times smaller"),
        (1.96, f"1.96 belongs to many values; with {count} seeds take the t quantile, {t:.2f}"),
        (one_sided, "an interval of 95 % leaves 2.5 % on each side; take the t quantile of 0.975"),
        (one_too_many, "n differences have n − 1 degrees of freedom"),
        (1, "this is one standard error; multiply it by the t quantile"),
    ), 2e-3, 0)  # fmt: skip
    groups = "this is the interval of two unpaired groups; take the difference for each seed first"
    factors = 1.96, t, t_quantile(0.975, 2 * count - 2)
    explain(half / unpaired, ((factor, groups) for factor in factors), 1e-2)
    raise Wrong(f"with {count} seeds the interval is the mean ± {right:.5f}, yours is ± {half:.5f}")


@tests("08.2", "McNemar's test, exactly")
def _mcnemar(answer: object) -> str:
    function = a_function(answer)
    random = draws(82)
    cases = [
        (40, 3, 8, 20),
        (300, 25, 12, 80),
        (10, 6, 6, 5),
        (50, 0, 0, 10),
        (900, 61, 40, 99),
        (5, 0, 9, 1),
    ]
    for both, only_first, only_second, none in cases:
        first = np.repeat([True, True, False, False], [both, only_first, only_second, none])
        second = np.repeat([True, False, True, False], [both, only_first, only_second, none])
        order = random.permutation(len(first))
        found = a_number(function(first[order], second[order]), "what your function returns")
        _judge_p(found, only_first, only_second, len(first), (both + only_first, both + only_second))
    return "equal to the exact binomial probability in six cases, ties and no difference at all included"


def _judge_p(found: float, one: int, two: int, images: int, right: tuple[int, int]) -> None:
    count = one + two
    tail = sum(math.comb(count, k) for k in range(min(one, two) + 1)) / 2**count
    exact = min(1.0, 2 * tail)
    if math.isclose(found, exact, rel_tol=1e-6):
        return
    where = f"with {one} images that only the first gets right and {two} that only the second does"
    if found > 1 and math.isclose(found, 2 * tail, rel_tol=1e-6):
        raise Wrong(f"{where}, your probability is {found:.2f}; at most 1 is possible, so cut it there")
    if math.isclose(found, tail, rel_tol=1e-6):
        raise Wrong(f"{where}, this is one side; either recipe could be the better one, so double it")
    pooled = sum(right) / (2 * images)
    error = math.sqrt(2 * pooled * (1 - pooled) / images) if 0 < pooled < 1 else 1.0
    normal = 2 * (1 - statistics.NormalDist().cdf(abs(one - two) / images / error))
    if math.isclose(found, normal, rel_tol=0.02):
        raise Wrong(
            f"{where}, this compares two accuracies as if from different images; only images on which the "
            "two differ count"
        )
    if count:
        exactly = f"{where}, this is the χ² statistic; return the exact probability, from a binomial"
        summed = f"{where}, this is the χ² approximation; sum the binomial probabilities instead"
        for square in ((one - two) ** 2 / count, max(abs(one - two) - 1, 0) ** 2 / count):
            explain(found, [(square, exactly)], 1e-6)
            explain(found, [(math.erfc(math.sqrt(square / 2)), summed)], 1e-3)
    if count > 62 and found in (0.0, 1.0):
        raise Wrong(f"{where}, 2 ** {count} doesn't fit into a NumPy integer; turn the counts into int first")
    raise Wrong(f"{where}, the probability is {exact:.4g}, yours {found:.4g}")


@tests("08.3", "what the best of k reports")
def _expected_best(answer: object) -> str:
    function = a_function(answer)
    random = draws(83)
    drawn = float(random.uniform(0.4, 0.9)), *random.integers((100, 2), (1000, 40)).tolist()
    for accuracy, images, k in ((0.6, 200, 10), (0.9, 1000, 5), (0.5, 100, 1), (0.75, 400, 40), drawn):
        found = a_number(function(accuracy, images, k), "what your function returns")
        right = best_of(accuracy, images, k)
        deviation = math.sqrt(accuracy * (1 - accuracy) / images)
        if abs(found - right) < 0.15 * deviation:
            continue
        case = f"with accuracy {accuracy:g}, {images} images and k = {k}"
        if k > 1 and abs(found - accuracy) < 0.2 * deviation:
            raise Wrong(f"{case}, this is the true accuracy; the best of {k} scores reports more than that")
        if abs(found - (right - accuracy)) < 0.15 * deviation:
            raise Wrong(f"{case}, this is the bias alone; add the true accuracy")
        if abs(found - (2 * accuracy - right)) < 0.15 * deviation:
            raise Wrong(f"{case}, this is the worst of {k}; take the highest score")
        if abs(found - (accuracy + math.sqrt(2 * math.log(k)) * deviation)) < 0.05 * deviation:
            raise Wrong(f"{case}, √(2 ln k) is for very large k, and too much here; simulate it")
        if abs(found - right) < 4 * deviation:
            raise Wrong(
                f"{case}, your value is {found:.4f}, expected about {right:.4f}; average the best of k over "
                "some thousand repetitions"
            )
        raise Wrong(f"{case}, your value is {found:.4g}, which can't be: return an accuracy from 0 to 1")
    return "within simulation noise of the exact expectation, for k from 1 to 40"


def best_of(accuracy: float, images: int, k: int) -> float:
    """Return the expected highest accuracy of k classifiers that are equally good, independently scored."""
    logs = [
        math.lgamma(images + 1) - math.lgamma(n + 1) - math.lgamma(images - n + 1)
        + n * math.log(accuracy) + (images - n) * math.log(1 - accuracy)
        for n in range(images + 1)
    ]  # fmt: skip
    below = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return float((1 - below[:-1] ** k).sum() / images)


# Why each sentence of the report is a flaw, or isn't.
_FLAWS = {
    "B": "one of the recipes was tuned harder than the other",
    "D": "think about what the test set was used for",
    "F": "count the trainings behind each number",
}
_SOUND = {
    "A": "A is fine: one thing is changed and the rest is the same",
    "C": "C is fine: both recipes see the same images for as long",
    "E": "E is fine: the same test images make a paired comparison possible",
    "G": "G is fine: a published negative detail helps the reader",
}


@tests("08.4", "three flaws of a comparison")
def _flaws(answer: object) -> str:
    letters = _letters(answer)
    for letter in sorted(letters & _SOUND.keys()):
        raise Wrong(_SOUND[letter])
    missing = sorted(_FLAWS.keys() - letters)
    if len(missing) == 3:
        raise Wrong("name the letters of three sentences, such as 'AEG'")
    if missing:
        raise Wrong(f"{len(letters)} of 3 found; {_FLAWS[missing[0]]}")
    return "tuned against untuned, a checkpoint chosen on the test set, one seed"


def _letters(answer: object) -> set[str]:
    parts = list(answer) if isinstance(answer, str | list | tuple | set | frozenset) else None
    if parts is None or not all(isinstance(part, str) for part in parts):
        raise Wrong(f"your answer is {shown(answer)}; expected the letters of three sentences, such as 'AEG'")
    letters = {letter.upper() for part in parts for letter in part if letter.isalpha()}
    unknown = sorted(letters - _FLAWS.keys() - _SOUND.keys())
    if unknown:
        raise Wrong(f"there is no sentence {unknown[0]}; the sentences are A to G")
    return letters
