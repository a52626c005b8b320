"""Choose which examples of a source are used: some classes, a validation split, fewer training examples."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import InputError, unknown_name_error
from labkit.plurals import listed, printable

# Hold out one example in 10, so 5,000 of CIFAR-10's 50,000: He et al. 2016 (arXiv:1512.03385), section 4.2.
DIVISOR = 10


@dataclass(frozen=True)
class ImageData:
    """Images uint8 [n, height, width, 3], labels and class names; ``layout`` names the storage layout.

    Labels are class indices int32 [n], zeros and ones int32 [n, classes] in a multi-label data set, or
    float32 [n, numbers], whose names ``classes`` then are.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    layout: str

    @property
    def multi_label(self) -> bool:
        return self.train_labels.ndim == 2 and self.train_labels.dtype.kind != "f"


def class_names(wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the wanted classes.

    Args:
        wanted: names from `known`, or their numbers, counted from 0, as text. A name takes precedence; where
            all names are numbers, there are only names.
        known: all class names of the data set.

    Raises:
        InputError: a class is unknown or named twice, or fewer than two classes are wanted.
    """
    names, by_number = [], not all(name.isdecimal() for name in known)
    for name in wanted:
        if name.isdecimal() and name not in known and by_number:
            if int(name) >= len(known):
                raise InputError(
                    f"class number {name} does not exist; give names or numbers from 0 to {len(known) - 1}"
                )
            name = known[int(name)]
        if name not in known:
            raise unknown_name_error("class", name, known)
        if name in names:
            raise InputError(f"class {name!r} is named twice; name each class once")
        names.append(name)
    if len(names) < 2:
        raise InputError(f"--classes names fewer than two classes; name two or more of {listed(known)}")
    return tuple(names)


def relabelled(labels: np.ndarray, known: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return labels as indices into ``names``, int32 [n]; -1 for a class that isn't among them.

    Args:
        labels: indices [n] into ``known``.
        known: all class names of the data set.
        names: of the classes that are kept.

    Raises:
        InputError: the data set is multi-label, so an image may also show other classes, or has numbers.
    """
    if labels.ndim == 2:
        raise InputError("--classes needs a data set with one label per image; leave it out")
    indices = np.full(len(known), -1, np.int32)
    indices[[known.index(name) for name in names]] = range(len(names))
    return indices[labels]


def with_classes(data: ImageData, names: tuple[str, ...]) -> ImageData:
    """Return only the examples of the named classes, labelled as by :func:`relabelled`."""
    train, test = (
        relabelled(labels, data.classes, names) for labels in (data.train_labels, data.test_labels)
    )
    return dataclasses.replace(
        data,
        train_images=data.train_images[train >= 0],
        train_labels=train[train >= 0],
        test_images=data.test_images[test >= 0],
        test_labels=test[test >= 0],
        classes=names,
    )


def with_train_examples(
    images: np.ndarray, labels: np.ndarray, num_classes: int, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` of the examples in their original order, with each class in proportion (±1).

    The same seed chooses the same examples. Where classes have as many examples, a larger count contains
    those of a smaller one.

    Raises:
        InputError: `count` is below the number of classes or above the number of examples, or a class gets
            none.
    """
    if not num_classes <= count <= len(labels):
        raise InputError(
            f"--train-examples is {count}; allowed: from {num_classes}, one of each class, to {len(labels)}"
        )
    rows = stratified_rows(labels, num_classes, count, seed)
    before, after = (class_counts(each, num_classes) for each in (labels, labels[rows]))
    if len(lost := np.flatnonzero((before > 0) & (after == 0))):
        raise InputError(f"--train-examples is {count}, of which class number {lost[0]} gets none; give more")
    return images[rows], labels[rows]


def class_counts(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return how many of the examples each class has, int [num_classes]; each number has all."""
    if labels.dtype.kind == "f":
        return np.full(num_classes, len(labels))
    return labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=num_classes)


def check_all_classes(labels: np.ndarray, classes: Sequence[str], way_out: str) -> None:
    """Raise InputError, which ends with a way out, for a class without training examples."""
    missing = np.flatnonzero(class_counts(labels, len(classes)) == 0).tolist()
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        name = printable(classes[missing[0]])
        raise InputError(f"class {name}{more}: no examples left to train on; {way_out}")


def lacking(labels: np.ndarray, classes: Sequence[str], rows: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line for each split, of the rows that are given, that lacks some of the classes."""
    lines = []
    for split, part in rows.items():
        missing = np.flatnonzero(class_counts(labels[part], len(classes)) == 0).tolist()
        if missing:
            names = listed([printable(classes[label]) for label in missing], 3)
            what = "the network can't learn" if split == "train" else "results on them say nothing of"
            lines.append(f"warning: no {split} pictures of {names}; {what} these classes")
    return lines


def are_mixed(labels: np.ndarray) -> bool:
    """Return whether labels, int [n], change from row to row at least half as often as in a random order."""
    if labels.ndim > 1:
        return False
    shares = np.unique(labels, return_counts=True)[1] / max(len(labels), 1)
    return bool(np.count_nonzero(np.diff(labels)) >= len(labels) * (1 - (shares**2).sum()) / 2)


def split_rows(
    labels: np.ndarray, num_classes: int, size: int, seed: int, train_examples: int | None
) -> dict[str, np.ndarray]:
    """Return the rows to train on, and those held out for validation where ``size`` isn't 0, in their order.

    Args:
        labels: of the training examples, integers [n], or zeros and ones [n, num_classes].
        num_classes: the number of classes.
        size: how many are held out, with each class (or each set of labels) in proportion.
        seed: decides which they are.
        train_examples: how many of the others are kept; None for all.

    Raises InputError for numbers that aren't possible.
    """
    if size >= len(labels):
        raise InputError(f"validation size {size} leaves nothing to train on; give less than {len(labels)}")
    held_out = stratified_rows(labels, num_classes, size, seed)
    rows = np.flatnonzero(~held_out)
    if train_examples is not None:
        rows, _ = with_train_examples(rows, labels[rows], num_classes, train_examples, seed)
    return {"train": rows} | ({"validation": np.flatnonzero(held_out)} if size else {})


def strata(labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, int]:
    """Return each example's stratum, int [n], and the number of strata.

    With labels [n] the strata are the classes. With labels [n, num_classes] each set of labels that occurs is
    a stratum ("label powerset"). Numbers are one stratum.
    """
    if labels.dtype.kind == "f":
        return np.zeros(len(labels), np.int64), 1
    if labels.ndim == 1:
        return labels, num_classes
    sets, numbers = np.unique(labels, axis=0, return_inverse=True)
    return numbers.reshape(-1), len(sets)


def stratified_rows(labels: np.ndarray, num_classes: int, size: int, seed: int) -> np.ndarray:
    """Choose `size` random rows with each class, or each set of labels, in proportion to its frequency.

    Args:
        labels: as of :func:`strata`.
        num_classes: the number of classes.
        size: how many rows to choose, 0 … n.
        seed: non-negative; the same seed chooses the same rows.

    Returns:
        bool [n], true for the chosen rows.
    """
    kinds, number = strata(labels, num_classes)
    if labels.ndim == 2:  # of the sets that are too rare for a row each, the first would get all of them
        rare = np.bincount(kinds) * size < len(labels)
        kinds, number = np.where(rare, number, np.arange(number))[kinds], number + 1
    counts = np.bincount(kinds, minlength=number)
    shares = counts * size / max(len(labels), 1)
    quotas = np.floor(shares).astype(np.int64)
    # The rows lost by rounding down go to the largest remainders, and in a tie to the lower class.
    quotas[np.argsort(quotas - shares, kind="stable")[: size - quotas.sum()]] += 1
    order = random_order(len(labels), seed, "split")
    order = order[np.argsort(kinds[order], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its stratum
    chosen = np.zeros(len(labels), bool)
    chosen[order[place < np.repeat(quotas, counts)]] = True
    return chosen


def random_order(count: int, seed: int, purpose: str) -> np.ndarray:
    """Return the numbers below ``count`` in an order that follows from a seed and what it is for."""
    # Sort raw 64-bit numbers of PCG64, because NumPy may change how Generator.permutation uses them.
    bits = np.random.PCG64(np.random.SeedSequence((seed, int.from_bytes(purpose.encode()))))
    return np.argsort(bits.random_raw(count), kind="stable")


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 [n, height, width, channels], for pixels 0 … 1.

    Computed from the counts of the 256 values. The result is the same on every machine, because math.fsum
    rounds only once, in whatever order it adds. (The last digit of a dot product depends on the processor.)
    """
    channels = range(images.shape[-1])
    return counted_statistics(
        np.stack([np.bincount(images[..., channel].ravel(), minlength=256) for channel in channels])
    )


def target_statistics(labels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each number of labels, float32 [n, numbers].

    They are the same on every machine, as those of the pixels. A number that is always the same gets the
    standard deviation 1.
    """
    means, stds = [], []
    for column in labels.astype(np.float64).T.tolist():
        mean = math.fsum(column) / len(column)
        means.append(mean)
        stds.append(math.sqrt(math.fsum((value - mean) ** 2 for value in column) / len(column)) or 1.0)
    return tuple(means), tuple(stds)


def counted_statistics(counts: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return what :func:`channel_statistics` does from the counts of values, integers [channels, 256]."""
    values = np.arange(256) / 255.0
    means, stds = [], []
    for frequencies in counts / counts.sum(axis=1, keepdims=True):
        mean = math.fsum(frequencies * values)
        means.append(mean)
        # A constant channel gets standard deviation 1, so that standardizing does not divide by zero.
        stds.append(math.sqrt(math.fsum(frequencies * (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)
