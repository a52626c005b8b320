"""Wrong answers to lesson 09, each with words of the hint that it deserves."""

import numpy as np

from course.lessons.mistakes.measures import best_temperature
from labkit.analysis.slices import accuracy_interval


def bins(probabilities, labels):
    """Return the gaps and the counts of the bins that aren't empty."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    number = np.clip(np.ceil(confidence * 10).astype(int) - 1, 0, 9)
    parts = [number == at for at in np.unique(number)]
    return np.array([confidence[part].mean() - right[part].mean() for part in parts]), np.array(
        [part.sum() for part in parts]
    )


def unweighted(probabilities, labels):
    return np.abs(bins(probabilities, labels)[0]).mean()


def signed(probabilities, labels):
    gaps, counts = bins(probabilities, labels)
    return np.dot(gaps, counts) / len(labels)


def of_examples(probabilities, labels):
    return np.mean(np.abs(probabilities.max(axis=1) - (probabilities.argmax(axis=1) == labels)))


def last_bin_lost(probabilities, labels):
    kept = probabilities.max(axis=1) < 1
    return unweighted(probabilities[kept], labels[kept]) if kept.any() else 0.0


def most_accurate(logits, labels):
    """The temperature doesn't change which class is the largest: this finds the first of the grid."""
    grid = np.linspace(0.1, 5, 50)
    return grid[np.argmax([((logits / t).argmax(axis=1) == labels).mean() for t in grid])]


def occlude(predict, image, label, patch, *, fresh=True, sign=1, swap=False):
    image = image if fresh is None else image.copy()
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    before = predict(image[None])[0, label]
    falls, covered = np.zeros((rows, columns)), image
    for row in range(rows):
        for column in range(columns):
            covered = image.copy() if fresh else covered
            covered[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = 0
            falls[row, column] = sign * (before - predict(covered[None])[0, label])
    return falls.T if swap else falls


def wilson_of_one_deviation(right, total):
    share, extra = right / total, 1 / total
    half = (share * (1 - share) / total + extra / total / 4) ** 0.5
    return np.array([share + extra / 2 - half, share + extra / 2 + half]) / (1 + extra)


def wald(right, total):
    share = right / total
    half = 1.96 * (share * (1 - share) / total) ** 0.5
    return share - half, share + half


WRONG = {
    "09.1": [
        (unweighted, "every bin counts the same"),
        (signed, "gaps of opposite sign cancel"),
        (of_examples, "the gap of each example"),
        (last_bin_lost, "exactly 1 belongs to the last bin"),
    ],
    "09.2": [
        (lambda logits, labels: 1 / best_temperature(logits, labels), "divide the logits"),
        (lambda logits, labels: 1.0, "changes nothing"),
        (most_accurate, "look for its minimum"),
        (lambda logits, labels: min(best_temperature(logits, labels), 1.5), "finer or wider grid"),
        (lambda logits, labels: max(best_temperature(logits, labels), 0.5), "0.30 lowers it more"),
        (lambda logits, labels: -2.0, "above zero"),
    ],
    "09.3": [
        (lambda *inputs: occlude(*inputs, sign=-1), "the sign is wrong"),
        (lambda *inputs: occlude(*inputs, swap=True), "swap them"),
        (lambda *inputs: occlude(*inputs, fresh=False), "fresh copy"),
        (lambda *inputs: occlude(*inputs, fresh=None), "cover a copy of it"),
        (
            lambda predict, image, label, patch: np.zeros([side // patch for side in image.shape[:2]]),
            "nothing falls",
        ),
    ],
    "09.4": [
        (lambda losses, count: np.argsort(-losses[-1])[:count], "the last loss alone"),
        (lambda losses, count: np.argsort(-losses.max(axis=0))[:count], "one bad record"),
        (lambda losses, count: np.argsort(losses.mean(axis=0))[:count], "the lowest loss"),
        (lambda losses, count: np.sort(losses.mean(axis=0))[-count:], "not losses"),
        (lambda losses, count: losses.mean(axis=0) > 2, "indices of"),
        (lambda losses, count: np.argsort(losses.mean(axis=0))[-count:], "the most suspicious one first"),
    ],
    "09.5": [
        (wald, "never below 0"),
        (lambda right, total: np.clip(wald(right, total), 0, 1), "without width"),
        (wilson_of_one_deviation, "1.96"),
        (lambda right, total: (0.0, 1.0), "is enough"),
        (lambda right, total: np.multiply(accuracy_interval(np.arange(total) < right)[1:], 100), "per cent"),
    ],
}
