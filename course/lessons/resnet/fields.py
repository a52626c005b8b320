"""Receptive fields, measured: which pixels change one output."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.analysis.architecture import receptive_field
from labkit.models.variants import with_layer_outputs


@dataclass(frozen=True)
class ReceptiveField:
    """What one output position of a layer sees.

    ``layer``: its name. ``counted``: side of the field in pixels by the formula. ``strength``: float64
    [height, width], how strongly each pixel of the image changes the output, as a share of the sum.
    """

    layer: str
    counted: int
    strength: NDArray[np.float64]

    @property
    def box(self) -> tuple[int, int, int, int]:
        """First and last row, first and last column with any influence."""
        rows, columns = (np.flatnonzero(self.strength.any(axis=axis)) for axis in (1, 0))
        return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])

    @property
    def measured(self) -> int:
        """Side in pixels of the smallest square that contains every pixel with any influence."""
        top, bottom, left, right = self.box
        return max(bottom - top, right - left) + 1

    @property
    def core(self) -> int:
        """Side in pixels of the smallest square around the centre of ``box`` with 90 % of the influence."""
        top, bottom, left, right = self.box
        row, column = (top + bottom) // 2, (left + right) // 2
        height, width = self.strength.shape
        rows, columns = abs(np.arange(height) - row)[:, None], abs(np.arange(width) - column)
        distance = np.maximum(rows, columns)
        radius = 0
        while self.strength[distance <= radius].sum() < 0.9:
            radius += 1
        return 2 * radius + 1


def gradient_fields(model: keras.Model, layers: list[str]) -> list[ReceptiveField]:
    """Return the receptive field of each layer's middle position, from gradients with respect to the pixels.

    The gradients are taken in inference mode, where each image is on its own, on two random images.

    Args:
        model: functional, channels last; its images must be larger than the fields.
        layers: names; each has outputs [batch, height, width, channels].
    """
    height, width, channels = model.input_shape[1:]
    pixels = tf.random.stateless_normal([2, height, width, channels], [0, 0])
    inner = with_layer_outputs(model)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(pixels)
        outputs = inner(pixels, training=False)
        middles = {}
        for name in layers:
            rows, columns = outputs[name].shape[1:3]
            middles[name] = tf.reduce_sum(outputs[name][:, rows // 2, columns // 2], axis=1)
    found = []
    for name in layers:
        gradient = np.abs(tape.gradient(middles[name], pixels).numpy()).astype(np.float64).sum(axis=(0, 3))
        part = keras.Model(model.inputs, model.get_layer(name).output)
        found.append(ReceptiveField(name, receptive_field(part)[0], gradient / gradient.sum()))
    return found
