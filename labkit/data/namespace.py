"""The functions that NumPy and TensorFlow spell differently, under one name.

What is done to training images is written once over them, and both libraries give the same bits. A function
that takes arrays and tensors alike looks up its namespace by one of its arguments: ``namespace(index)``.
TensorFlow is not imported here: whoever has a tensor has imported it, and others needn't wait for it.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a tensor


def namespace(array: Array) -> Any:
    """Return NumPy's functions for an array or a number, and TensorFlow's for a tensor."""
    return _NumPy if isinstance(array, np.ndarray | np.generic | int) else _tensorflow()


class _NumPy:
    arange, floor, maximum, minimum = np.arange, np.floor, np.maximum, np.minimum
    sqrt, where, pad, cumsum = np.sqrt, np.where, np.pad, np.cumsum
    reshape, shape, transpose, uint64 = np.reshape, np.shape, np.transpose, np.uint64

    @staticmethod
    def cast(array: Array, dtype: Any) -> Array:
        """Return the array with another type; a negative number wraps around in an unsigned one."""
        return np.asarray(array).astype(dtype)

    @staticmethod
    def shift_right(bits: Array, by: int) -> Array:
        """Shift whole numbers of any type."""
        return np.right_shift(bits, bits.dtype.type(by))

    @staticmethod
    def take(rows: Array, places: Array) -> Array:
        """Return the rows at some places."""
        return np.take(rows, places, axis=0)

    @staticmethod
    def largest(array: Array, axis: int) -> Array:
        """Return the largest number along an axis."""
        return np.max(array, axis=axis)

    @staticmethod
    def total(array: Array, axes: Sequence[int]) -> Array:
        """Return the sums of int32 over some axes, which are kept with the length 1."""
        return np.sum(array, axis=tuple(axes), keepdims=True, dtype=np.int32)

    @staticmethod
    def mean(array: Array, axes: Sequence[int]) -> Array:
        """Return the means over some axes, which are kept with the length 1."""
        return np.mean(array, axis=tuple(axes), keepdims=True)

    @staticmethod
    def descending(hashes: Array) -> Array:
        """Return the order, int64, of unsigned numbers along the last axis, read as signed ones."""
        return np.argsort(~hashes.view(np.int64), kind="stable")

    @staticmethod
    def counts(values: Array, size: int) -> Array:
        """Return how often each of the numbers from 0 to size − 1 is there, int32 [size]."""
        return np.bincount(values, minlength=size).astype(np.int32)

    @staticmethod
    def choose(number: Array, functions: Sequence[Callable[[], Array]]) -> Array:
        """Return the result of one of the functions, whose results have one shape and type."""
        return functions[int(number)]()

    @staticmethod
    def for_each(function: Callable[..., Array], arrays: Sequence[Array]) -> Array:
        """Return the function's results, uint8, for each image and what belongs to it."""
        made = np.empty_like(arrays[0])
        for row, parts in enumerate(zip(*arrays, strict=True)):
            made[row] = function(parts)
        return made


@cache
def _tensorflow() -> Any:
    tf: Any = sys.modules["tensorflow"]

    class TensorFlow:
        arange, floor, maximum, minimum = tf.range, tf.floor, tf.maximum, tf.minimum
        sqrt, where, pad, cumsum = tf.sqrt, tf.where, tf.pad, tf.cumsum
        cast, reshape, shape, transpose, take = tf.cast, tf.reshape, tf.shape, tf.transpose, tf.gather
        largest = tf.reduce_max

        @staticmethod
        def uint64(value: int) -> Array:
            return tf.constant(value, tf.uint64)

        @staticmethod
        def shift_right(bits: Array, by: int) -> Array:
            return tf.bitwise.right_shift(bits, tf.constant(by, bits.dtype))

        @staticmethod
        def total(array: Array, axes: Sequence[int]) -> Array:
            return tf.reduce_sum(tf.cast(array, tf.int32), axis=axes, keepdims=True)

        @staticmethod
        def mean(array: Array, axes: Sequence[int]) -> Array:
            return tf.reduce_mean(array, axis=axes, keepdims=True)

        @staticmethod
        def descending(hashes: Array) -> Array:
            size = hashes.shape[-1]
            return tf.cast(tf.math.top_k(tf.bitcast(hashes, tf.int64), size).indices, tf.int64)

        @staticmethod
        def counts(values: Array, size: int) -> Array:
            return tf.math.bincount(values, minlength=size, maxlength=size)

        @staticmethod
        def choose(number: Array, functions: Sequence[Callable[[], Array]]) -> Array:
            return tf.switch_case(number, list(functions))

        @staticmethod
        def for_each(function: Callable[..., Array], arrays: Sequence[Array]) -> Array:
            spec = tf.TensorSpec(arrays[0].shape[1:], tf.uint8)
            return tf.map_fn(function, tuple(arrays), fn_output_signature=spec)

    return TensorFlow
