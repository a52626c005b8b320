"""The tests of the exercises of lesson 09."""

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.mistakes.measures import reliability
from course.lessons.verdict import Wrong, a_function, a_number, an_array, any_array, draws, explain, tests
from labkit.analysis.slices import accuracy_interval
from labkit.training.scores import single_label_scores, softmax

CANCEL = "gaps of opposite sign cancel; take the absolute value of each bin's gap"


@tests("09.1", "write the expected calibration error")
def _test_calibration_error(answer: Any) -> str:
    error = a_function(answer)
    generator = draws(1)
    sure = np.eye(3)[[0, 1, 2, 0]]
    half = a_number(
        error(sure, np.array([0, 1, 0, 1])), "the error of four sure predictions, half of them right,"
    )
    if abs(half) < 1e-9:
        raise Wrong(
            "sure predictions, half of them right, get the error 0; a confidence of exactly 1 "
            "belongs to the last bin"
        )
    if not 0.49 < half < 0.51:
        raise Wrong(
            f"four predictions of 100 %, of which two are right, have the error 0.5, yours is {half:.3f}; "
            "compare the confidence of a bin with the share of right predictions in it"
        )
    for count, classes in ((700, 10), (60, 4), (31, 3)):
        logits = generator.normal(0, 2, (count, classes))
        probabilities, labels = softmax(logits), _drawn(softmax(logits / 2.5), generator)
        _compare_error(a_number(error(probabilities, labels)), probabilities, labels)
    return "your error equals the weighted gap of the bins on random predictions, also where bins are empty"


def _compare_error(given: float, probabilities: NDArray[Any], labels: NDArray[Any]) -> None:
    bins = reliability(probabilities, labels)
    if abs(given - bins.error) < 1e-6:
        return
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    gaps, counts = (bins.confidence - bins.accuracy)[bins.counts > 0], bins.counts[bins.counts > 0]
    true = probabilities[np.arange(len(labels)), labels]
    explain(given, (
        (np.abs(gaps).mean(), "every bin counts the same; weight its gap with its share of the examples"),
        (np.dot(gaps, counts) / len(labels), CANCEL),
        (np.abs(np.dot(gaps, counts)) / len(labels), CANCEL),
        (np.dot(np.abs(gaps), counts), "the sum is not divided by the number of examples"),
        (np.abs(gaps).max(), "this is the largest gap; the error is their weighted mean"),
        (np.mean(np.abs(true - right)), "confidence is the probability of the predicted class"),
        (np.mean(np.abs(confidence - right)), "this is the gap of each example; average within a bin first"),
    ), 0, 1e-6)  # fmt: skip
    raise Wrong(f"on {len(labels)} random predictions your error is {given:.4f}; expected {bins.error:.4f}")


def _drawn(probabilities: NDArray[Any], generator: np.random.Generator) -> NDArray[np.intp]:
    """Return a class for each row, drawn with its probabilities."""
    return (probabilities.cumsum(axis=1) < generator.random((len(probabilities), 1))).sum(axis=1)


@tests("09.2", "find the temperature")
def _test_temperature(answer: Any) -> str:
    find = a_function(answer)
    generator = draws(2)
    for true, count in ((2.0, 4000), (0.6, 3000), (1.3, 4000), (0.3, 3000)):
        logits = generator.normal(0, 3, (count, 5)) * true
        labels = _drawn(softmax(logits / true), generator)
        found = a_number(find(logits.copy(), labels), "your temperature")
        if found <= 0:
            raise Wrong(f"your temperature is {found:.3g}; logits are divided by it, so it is above zero")
        if abs(found / true - 1) < 0.08:
            continue
        if abs(found * true - 1) < 0.08:
            raise Wrong(f"your {found:.2f} is 1 / temperature; divide the logits by the temperature")
        before, after = (single_label_scores(labels, logits / t)["loss"] for t in (1, found))
        if abs(found - 1) < 1e-9:
            raise Wrong("a temperature of 1 changes nothing; search for a value with a smaller cross-entropy")
        if after > before:
            raise Wrong(
                f"with your {found:.2f} the cross-entropy goes from {before:.3f} to {after:.3f}; "
                "look for its minimum"
            )
        raise Wrong(
            f"your {found:.2f} lowers the cross-entropy, {true:.2f} lowers it more; use a finer or wider grid"
        )  # fmt: skip
    return "it finds the factor of the logits, for networks that are too sure and too unsure"


@tests("09.3", "write an occlusion map")
def _test_occlusion(answer: Any) -> str:
    occlude = a_function(answer)
    generator = draws(3)
    for (height, width), patch, (top, left), label in (
        ((12, 16), 4, (4, 8), 0), ((20, 10), 5, (10, 5), 2), ((9, 9), 3, (0, 6), 1),
    ):  # fmt: skip
        image = generator.integers(60, 200, (height, width, 3)).astype(np.uint8)
        before = image.copy()
        seen: list[NDArray[Any]] = []
        predict = _looks_at(image, slice(top, top + patch), slice(left, left + patch), label, seen)
        shape = (height // patch, width // patch)
        raw = any_array(occlude(predict, image, label, patch), "your map")
        if raw.shape == shape[::-1] and shape != shape[::-1]:
            raise Wrong(f"your map has {raw.shape[0]} rows and {raw.shape[1]} columns; swap them")
        falls = an_array(raw, shape, "your map")
        if not np.array_equal(image, before):
            raise Wrong("your function changes the image that it gets; cover a copy of it")
        _compare_falls(falls, (top // patch, left // patch))
        if any(np.abs(shown[shown != before].astype(float) - 128).max(initial=0) > 1 for shown in seen):
            raise Wrong("the falls are right, but the patch isn't grey: cover it with 128 in each channel")
    return "the fall is where the pretended network looks, for three sizes of image, and zero elsewhere"


def _compare_falls(falls: NDArray[np.float64], at: tuple[int, int]) -> None:
    expected = np.zeros_like(falls)
    expected[at] = 0.7
    if np.allclose(falls, expected, atol=0.02):
        return
    if np.allclose(falls, -expected, atol=0.02):
        raise Wrong("the sign is wrong: a fall is the probability before minus the probability after")
    if np.allclose(falls, 0.9 - expected, atol=0.02):
        raise Wrong("these are the probabilities themselves; subtract them from that of the whole image")
    if falls[at] > 0.6 and falls.sum() > 0.8:
        raise Wrong("the fall stays after the important patch; begin with a fresh copy for every patch")
    if np.allclose(falls, 0, atol=0.02):
        raise Wrong(
            "nothing falls anywhere; is the patch really covered, and is it the probability of `label`?"
        )
    raise Wrong(f"the largest fall should be at row {at[0]}, column {at[1]} of the map, and the others zero")


def _looks_at(
    image: NDArray[np.uint8], rows: slice, columns: slice, label: int, seen: list[NDArray[Any]]
) -> Callable[..., Any]:
    """Return a pretended network of 3 classes that needs a patch unchanged to see ``label``.

    ``seen`` gets the images that it is shown.
    """

    def predict(images: Any) -> NDArray[np.float64]:
        images = np.asarray(images)
        if images.ndim != 4 or images.shape[1:] != image.shape:
            raise Wrong(
                f"predict got the shape {list(images.shape)}; it takes images [n, height, width, channels]"
            )
        seen.extend(images.copy())
        patches = images[:, rows, columns].astype(np.float64)
        changed = np.abs(patches - image[rows, columns]).mean(axis=(1, 2, 3)) > 2
        result = np.full((len(images), 3), 0.05)
        result[:, label] = np.where(changed, 0.2, 0.9)
        result[:, (label + 1) % 3] = 0.95 - result[:, label]
        return result

    return predict


@tests("09.4", "rank suspected labels")
def _test_suspects(answer: Any) -> str:
    rank = a_function(answer)
    shares = []
    for seed, (records, count, flips) in enumerate(((8, 400, 20), (5, 150, 12), (12, 900, 30))):
        losses, flipped = _pretended_losses(records, count, flips, draws(seed))
        given = any_array(rank(losses.copy(), flips), "what you return")
        if given.dtype == bool or given.shape == (count,):
            raise Wrong(f"return the indices of {flips} examples, not a value for each of the {count}")
        chosen = an_array(given, (flips,), "what you return")
        if not np.equal(chosen, chosen.round()).all() or chosen.min() < 0 or chosen.max() >= count:
            raise Wrong(f"return indices from 0 to {count - 1}, not losses; np.argsort gives indices")
        if len(set(chosen)) < flips:
            raise Wrong("an example is named twice; name each suspect once")
        index = chosen.astype(int)
        _compare_suspects(index, losses, flipped, flips)
        shares.append(flipped[index].mean())
    found = "all" if min(shares) == 1 else f"{min(shares):.0%} or more"
    return f"in three pretended trainings, {found} of your suspects have flipped labels"


def _compare_suspects(
    index: NDArray[np.intp], losses: NDArray[np.float64], flipped: NDArray[np.bool_], flips: int
) -> None:
    precision = flipped[index].mean()
    for score, hint in (
        (losses[-1], "the last loss alone misses labels that were learned by heart; use all records"),
        (losses.max(axis=0), "one bad record makes hard examples suspects; use more than the largest loss"),
        (losses[0], "at the first record nothing is learned yet, and every loss is high; use the later ones"),
        (-losses.mean(axis=0), "these are the examples with the lowest loss; suspects have the highest"),
    ):
        if set(index) == set(np.argsort(-score, kind="stable")[:flips]):
            raise Wrong(f"{precision:.0%} of your suspects have flipped labels; {hint}")
    if precision < 0.75:
        raise Wrong(
            f"{precision:.0%} of your suspects have flipped labels; expected 75 % or more: rank by how "
            "high the loss of an example is over the whole training"
        )
    mean = losses.mean(axis=0)[index]
    if mean[: flips // 3].mean() < mean[-(flips // 3) :].mean():
        raise Wrong("the least suspicious example comes first; put the most suspicious one first")


def _pretended_losses(
    records: int, count: int, flips: int, generator: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return losses [records, count] and which labels are flipped.

    Flipped examples keep a high loss until the last record, when most are learned by heart. Many others are
    hard: their loss is very high at one record.
    """
    flipped = np.zeros(count, bool)
    flipped[generator.choice(count, flips, replace=False)] = True
    falling = np.linspace(2.3, 0.3, records)[:, None]
    losses = falling * generator.uniform(0.6, 1.2, (records, count))
    hard = np.flatnonzero(~flipped)[: flips * 2]
    losses[generator.integers(1, records - 1, len(hard)), hard] = generator.uniform(7, 9, len(hard))
    losses[1:, flipped] = generator.uniform(3.5, 6.0, (records - 1, flips))
    learned = np.flatnonzero(flipped)[: flips * 2 // 3]
    losses[-1, learned] = generator.uniform(0.0, 0.2, len(learned))
    return losses, flipped


@tests("09.5", "write the interval of a slice's accuracy")
def _test_interval(answer: Any) -> str:
    interval = a_function(answer)
    coverages = []
    for total in (15, 40, 200, int(draws(95).integers(41, 200))):
        bounds = np.array(
            [an_array(interval(right, total), (2,), "your interval") for right in range(total + 1)]
        )
        low, high = bounds.T
        shares = np.arange(total + 1) / total
        if (low > high).any():
            raise Wrong("your lower bound is above the upper one")
        if (high > 1.5).any():
            raise Wrong("your bounds are counts or per cent; return shares from 0 to 1")
        if (low > shares + 1e-9).any() or (high < shares - 1e-9).any():
            raise Wrong("your interval doesn't contain the measured share right / total")
        if low.min() < -1e-9 or high.max() > 1 + 1e-9:
            raise Wrong("a share is never below 0 or above 1; the formula of Wilson stays within by itself")
        if high[-1] - low[-1] < 1e-6:
            raise Wrong(
                f"{total} right of {total} gives an interval without width, as if it never failed; "
                "use Wilson's formula instead of share ± 1.96 × standard error"
            )
        for true in (0.6, 0.8, 0.95):
            coverages.append(_coverage(low, high, true))
        _check_width(high - low, total)
    if min(coverages) < 0.9:
        raise Wrong(
            f"in some case only {min(coverages):.0%} of your intervals contain the true accuracy, instead of "
            "95 %; is the 1.96 missing, or squared where it shouldn't be?"
        )
    if np.mean(coverages) < 0.94:
        raise Wrong(
            f"your intervals contain the true accuracy in {np.mean(coverages):.0%} of the cases, instead of "
            "95 %; is your z 1.96?"
        )
    return f"{min(coverages):.1%} or more of your intervals contain the true accuracy, and none is too wide"


def _coverage(low: NDArray[Any], high: NDArray[Any], true: float) -> float:
    """Return the probability that the interval contains ``true``, exactly, from the binomial distribution."""
    total = len(low) - 1
    chances = [comb(total, k) * true**k * (1 - true) ** (total - k) for k in range(total + 1)]
    return float(np.dot(chances, (low <= true) & (true <= high)))


def _check_width(widths: NDArray[Any], total: int) -> None:
    bounds = np.array([accuracy_interval(np.arange(total) < right)[1:] for right in range(total + 1)])
    needed = bounds[:, 1] - bounds[:, 0]
    if (widths > 1.35 * needed).any():
        at = int((widths / needed).argmax())
        raise Wrong(
            f"for {at} right of {total} your interval is {widths[at]:.2f} wide; {needed[at]:.2f} is enough"
        )
