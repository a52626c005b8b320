"""Many small tensors between devices, as one message for each device.

TensorFlow sends every tensor that crosses from one task to another by a call of its own. A ResNet-20 has some
two hundred of them a step, most below a kilobyte: what they cost is the calls, not the bytes.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

__all__ = ["delivered", "fetched"]


def fetched(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``variables`` on the current device, inside a ``tf.function``.

    Each device that holds some of them sends one tensor a dtype.
    """
    copies: dict[int, tf.Tensor] = {}
    for places in _by_device(variables, [variable.dtype for variable in variables]):
        with tf.device(variables[places[0]].device):
            bundle = _joined([variables[place] for place in places])
        # The parts are cut off on the current device, so the whole crosses over.
        copies |= _cut(bundle, places, variables)
    return [copies[place] for place in range(len(variables))]


def delivered(values: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return copies of ``values``, each on the device of its variable, inside a ``tf.function``.

    Each device that holds some of the variables receives one tensor a dtype.

    Args:
        values: on the current device, of the variables' shapes.
        variables: one for each value.
    """
    copies: dict[int, tf.Tensor] = {}
    for places in _by_device(variables, [value.dtype for value in values]):
        bundle = _joined([values[place] for place in places])
        with tf.device(variables[places[0]].device):
            copies |= _cut(bundle, places, variables)
    return [copies[place] for place in range(len(values))]


def _by_device(variables: Sequence[tf.Variable], dtypes: Sequence[tf.DType]) -> list[list[int]]:
    """Return the variables' places in their list, together for each device and dtype."""
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for place, (variable, dtype) in enumerate(zip(variables, dtypes, strict=True)):
        groups.setdefault((variable.device, dtype), []).append(place)
    return list(groups.values())


def _joined(values: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    return tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)


def _cut(bundle: tf.Tensor, places: Sequence[int], variables: Sequence[tf.Variable]) -> dict[int, tf.Tensor]:
    """Return the parts of a bundle, with the variables' shapes, by place."""
    shapes = [variables[place].shape for place in places]
    parts = tf.split(bundle, [math.prod(shape) for shape in shapes])
    return {place: tf.reshape(part, shape) for place, part, shape in zip(places, parts, shapes, strict=True)}
