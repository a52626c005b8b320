"""Histograms with the same buckets for all values, so that the counts of several replicas can be added.

The buckets are logarithmic, because the gradients of a network range over many orders of magnitude: four for
each power of two from 2**-30 to 2**20, for either sign, and one around zero. Larger values count in the
outermost buckets. NaN and Infinity count in none.
"""

import math

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.run_directory.layers import LEVELS

SAMPLE_SIZE = 16384  # values of a histogram at most; its percentiles are then exact to about one in a hundred
_PER_OCTAVE, _SMALLEST, _LARGEST = 4, -30, 20
_SIDE = _PER_OCTAVE * (_LARGEST - _SMALLEST)  # buckets of one sign
NUM_BUCKETS = 2 * _SIDE + 1
_POSITIVE = 2.0 ** (_SMALLEST + np.arange(_SIDE + 1) / _PER_OCTAVE)
EDGES: NDArray[np.float64] = np.concatenate([-_POSITIVE[::-1], _POSITIVE])
SHOWN_BUCKETS = 30  # the number in histograms of ``tf.summary.histogram``


def sample_stride(count: int) -> int:
    """Return the stride that takes about ``SAMPLE_SIZE`` of ``count`` values, and never more.

    It is odd, or with 16 channels it would take values of the same few channels.
    """
    return math.ceil(count / SAMPLE_SIZE) | 1


def bucket_counts(values: tf.Tensor, rows: NDArray[np.int32]) -> tf.Tensor:
    """Return how many values of each row are in each bucket, float64 [rows, NUM_BUCKETS].

    Args:
        values: float tensor. All rows are counted in one operation.
        rows: the row of each value; its shape is that of ``values`` or broadcasts to it. Every row has a
            value.
    """
    values = tf.cast(values, tf.float32)
    exponents = tf.math.log(tf.maximum(tf.abs(values), 2.0 ** (_SMALLEST - 1))) / math.log(2.0)
    sides = tf.clip_by_value(tf.floor((exponents - _SMALLEST) * _PER_OCTAVE) + 1.0, 0.0, float(_SIDE))
    # NaN and Infinity go to one more bucket, which is dropped.
    buckets = tf.where(tf.math.is_finite(values), _SIDE + tf.sign(values) * sides, float(NUM_BUCKETS))
    indices = tf.cast(buckets, tf.int32) + rows * (NUM_BUCKETS + 1)
    num_rows = int(rows.max()) + 1
    size = num_rows * (NUM_BUCKETS + 1)
    with tf.device("CPU:0"):  # on GPUs, TensorFlow refuses to count with --deterministic
        counts = tf.math.bincount(tf.reshape(indices, [-1]), minlength=size, maxlength=size)
    return tf.cast(tf.reshape(counts, [num_rows, NUM_BUCKETS + 1])[:, :NUM_BUCKETS], tf.float64)


def evenly_spaced(counts: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the histogram in buckets of equal width, as TensorBoard shows it; None if nothing was counted.

    Args:
        counts: [NUM_BUCKETS].

    Returns:
        [SHOWN_BUCKETS, 3]: left edge, right edge, and count. A bucket's count is split in proportion to the
        width, so counts aren't whole numbers.
    """
    [used] = np.nonzero(counts)
    if not used.size:
        return None
    edges = np.linspace(EDGES[used[0]], EDGES[used[-1] + 1], SHOWN_BUCKETS + 1)
    below = np.interp(edges, EDGES, np.concatenate([[0.0], np.cumsum(counts)]))
    return np.stack([edges[:-1], edges[1:], np.diff(below)], axis=1)


def quantiles(counts: NDArray[np.float64]) -> list[float] | None:
    """Return the values at ``LEVELS`` with four digits; None if nothing was counted.

    A value is as exact as its bucket is wide, 19 %. What lies within the bucket around zero is 0.

    Args:
        counts: [NUM_BUCKETS].
    """
    [used] = np.nonzero(counts)
    if not used.size:
        return None
    part = slice(used[0], used[-1] + 1)
    below = np.concatenate([[0.0], np.cumsum(counts[part])])
    found = np.interp(np.array(LEVELS) * below[-1], below, EDGES[part.start : part.stop + 1])
    found[np.abs(found) <= _POSITIVE[0]] = 0.0
    return [float(f"{value:.4g}") for value in found.tolist()]
