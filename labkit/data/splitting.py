"""Which training examples are held out for validation, and the statistics of those that are left."""

import math

import numpy as np

__all__ = ["channel_statistics", "strata", "stratified_validation_rows"]


def strata(labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, int]:
    """Return what examples are balanced by, int [n], and how many kinds of it there are.

    The class of labels [n]; of [n, num_classes] each set of labels that occurs ("label powerset").
    """
    if labels.ndim == 1:
        return labels, num_classes
    sets, numbers = np.unique(labels, axis=0, return_inverse=True)
    return numbers.reshape(-1), len(sets)


def stratified_validation_rows(labels: np.ndarray, num_classes: int, size: int, seed: int) -> np.ndarray:
    """Choose `size` rows so that every class is held out in proportion to how often it occurs.

    Args:
        labels: integers [n] in 0 … num_classes − 1.
        num_classes: the number of classes.
        size: how many rows to choose, 0 … n.
        seed: non-negative; the same seed chooses the same rows.

    Returns:
        bool [n], true for the rows held out.
    """
    counts = np.bincount(labels, minlength=num_classes)
    shares = counts * size / max(len(labels), 1)
    quotas = np.floor(shares).astype(np.int64)
    # Largest remainders get what rounding down left over; ties go to the lower class.
    for label in np.argsort(quotas - shares, kind="stable")[: size - quotas.sum()]:
        quotas[label] += 1
    # Sorting raw 64-bit draws rests on PCG64 alone; NumPy may change how Generator.permutation uses them.
    bits = np.random.PCG64(np.random.SeedSequence((seed, 0x73706C6974)))  # "split" in ASCII
    order = np.argsort(bits.random_raw(len(labels)), kind="stable")
    chosen = np.zeros(len(labels), bool)
    for label, quota in enumerate(quotas):
        chosen[order[labels[order] == label][:quota]] = True
    return chosen


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 [n, height, width, channels], in 0 … 1 units.

    Exact: computed from how often each of the 256 values occurs, and alike on every machine, since math.fsum
    rounds once whatever the order. (A dot product's last digit depends on the processor.)
    """
    values = np.arange(256) / 255.0
    means, stds = [], []
    for channel in range(images.shape[-1]):
        occurs = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean = math.fsum(occurs * values)
        means.append(mean)
        # A channel that never changes is left as it is by a division by one.
        stds.append(math.sqrt(math.fsum(occurs * (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)
