"""Layers in NumPy with their gradients, an all-reduce, and the same block in TensorFlow.

All arrays are [images, rows, columns, channels] and kernels [rows, columns, in, out]. A convolution is one
matrix product: the values under the kernel become a row of a matrix ("im2col").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.memory.dense import all_gather, reduce_scatter
from course.lessons.workers import Worker
from labkit.startup.quiet_import import import_tensorflow

Array = NDArray[Any]
Axes = Sequence[int | None]
EPSILON = 1e-5  # added to a variance


def convolution(padded: Array, kernel: Array, stride: int = 1) -> Array:
    """Return the convolution of what is padded already: [images, rows', columns', out].

    Args:
        padded: [images, rows, columns, in].
        kernel: [height, width, in, out].
        stride: rows and columns from one output to the next.
    """
    columns = np.concatenate([padded[window] for window in _windows(padded, kernel, stride)], axis=3)
    return np.tensordot(columns, kernel.reshape(-1, kernel.shape[3]), 1)


def convolution_gradients(padded: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
    """Return the gradients of ``padded`` and ``kernel``, of their shapes.

    Args:
        padded, kernel: those of a convolution with stride 1.
        gradient: of its result.
    """
    of_padded, of_kernel = np.zeros_like(padded), np.empty_like(kernel)
    flat = gradient.reshape(-1, kernel.shape[3])
    for window, place in zip(_windows(padded, kernel, 1), np.ndindex(kernel.shape[:2]), strict=True):
        of_padded[window] += np.tensordot(gradient, kernel[place].T, 1)
        of_kernel[place] = padded[window].reshape(-1, padded.shape[3]).T @ flat
    return of_padded, of_kernel


def _windows(padded: Array, kernel: Array, stride: int) -> Iterator[tuple[slice, ...]]:
    """Yield for each place of the kernel the inputs that it meets there."""
    rows, columns = (padded.shape[axis] - kernel.shape[axis - 1] + 1 for axis in (1, 2))
    for y, x in np.ndindex(kernel.shape[:2]):
        yield slice(None), slice(y, y + rows, stride), slice(x, x + columns, stride)


def normalize(x: Array, mean: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return x normalized in each channel, and the factor of each channel.

    Args:
        mean: gets two numbers a channel, [2, channels], averages of the values that are here, and returns
            their averages over all workers.
    """
    average, square = mean(np.stack([x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))]))
    factor = 1 / np.sqrt(square - average**2 + EPSILON)
    return (x - average) * factor, factor


def normalize_gradient(
    gradient: Array, normal: Array, factor: Array, mean: Callable[[Array], Array]
) -> Array:
    """Return the gradient of ``normalize``'s input. ``normal``, ``factor``: what it returned."""
    average, along = mean(np.stack([gradient.mean((0, 1, 2)), (gradient * normal).mean((0, 1, 2))]))
    return factor * (gradient - average - normal * along)


def all_reduce(worker: Worker, array: Array) -> Array:
    """Return the sum of the workers' arrays, the same bits on each; a worker sends as much as in a ring."""
    return all_gather(worker, reduce_scatter(worker, array.ravel())).reshape(array.shape)


def cut(arrays: Sequence[Array], axes: Axes, worker: Worker) -> list[Array]:
    """Return the worker's part of each array, cut along its axis; None: the whole array."""
    pairs = zip(arrays, axes, strict=True)
    return [
        array if axis is None else np.split(array, worker.size, axis)[worker.rank] for array, axis in pairs
    ]


def join(parts: Sequence[Sequence[Array]], axes: Axes) -> list[Array]:
    """Return the whole arrays from the parts of all workers; what isn't cut is that of worker 0."""
    pairs = zip(zip(*parts, strict=True), axes, strict=True)
    return [found[0] if axis is None else np.concatenate(found, axis) for found, axis in pairs]


def error(found: Sequence[Array], right: Sequence[Array]) -> float:
    """Return the largest relative error of some arrays, each by the norm of its difference."""
    pairs = zip(found, right, strict=True)
    return float(max(np.linalg.norm(one - other) / np.linalg.norm(other) for one, other in pairs))


def by_tensorflow(x: Array, gradient: Array, first: Array, second: Array) -> list[Array]:
    """Return a block's output, and the gradients of its input and two kernels, as TensorFlow finds them."""
    import_tensorflow()
    import tensorflow as tf

    def normal(values):
        mean, variance = tf.nn.moments(values, [0, 1, 2])
        return (values - mean) / tf.sqrt(variance + EPSILON)

    tensors = [tf.constant(values) for values in (x, first, second)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        hidden = tf.nn.relu(normal(tf.nn.conv2d(tensors[0], tensors[1], 1, "SAME")))
        output = tf.nn.relu(tensors[0] + normal(tf.nn.conv2d(hidden, tensors[2], 1, "SAME")))
    found = tape.gradient(output, tensors, output_gradients=tf.constant(gradient))
    return [output.numpy(), *(values.numpy() for values in found)]
