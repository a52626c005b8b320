"""Tensor packing: send many small tensors between devices as one message per device and dtype.

TensorFlow makes one call for every tensor that crosses from one task to another. A ResNet-20 has about two
hundred of them in a step, most below a kilobyte, so the number of calls dominates the cost.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

__all__ = ["read_packed", "send_packed"]


def read_packed(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``variables`` on the current device, inside a ``tf.function``.

    Each device that holds some of them sends one tensor per dtype.
    """
    copies: dict[int, tf.Tensor] = {}
    for indices in _by_device(variables, [variable.dtype for variable in variables]):
        with tf.device(variables[indices[0]].device):
            packed = _pack([variables[index] for index in indices])
        copies |= _unpack(packed, indices, variables)  # on the current device, so only ``packed`` is sent
    return [copies[index] for index in range(len(variables))]


def send_packed(values: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``values``, each on the device of its variable, inside a ``tf.function``.

    Each device that holds some of the variables receives one tensor per dtype.

    Args:
        values: on the current device, with the variables' shapes.
        variables: one for each value.
    """
    copies: dict[int, tf.Tensor] = {}
    for indices in _by_device(variables, [value.dtype for value in values]):
        packed = _pack([values[index] for index in indices])
        with tf.device(variables[indices[0]].device):
            copies |= _unpack(packed, indices, variables)
    return [copies[index] for index in range(len(values))]


def _by_device(variables: Sequence[tf.Variable], dtypes: Sequence[tf.DType]) -> list[list[int]]:
    """Return the indices of the variables, grouped by device and dtype."""
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for index, (variable, dtype) in enumerate(zip(variables, dtypes, strict=True)):
        groups.setdefault((variable.device, dtype), []).append(index)
    return list(groups.values())


def _pack(values: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def _unpack(
    packed: tf.Tensor, indices: Sequence[int], variables: Sequence[tf.Variable]
) -> dict[int, tf.Tensor]:
    """Return the tensors of ``packed``, with the variables' shapes, by index."""
    shapes = [variables[index].shape for index in indices]
    parts = tf.split(packed, [math.prod(shape) for shape in shapes])
    return {index: tf.reshape(part, shape) for index, part, shape in zip(indices, parts, shapes, strict=True)}
