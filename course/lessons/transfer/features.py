"""What the stages of a network know about images: their outputs, and linear classifiers on them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.data.manifest import Manifest
from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.figures.style import drawing
from labkit.models.freezing import HEAD, stages
from labkit.models.variants import with_layer_outputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = 4  # features are averaged over GRID × GRID parts of the image
RIDGE = 1.0  # weight of the penalty, in units of the features' mean variance times the number of images


def stage_outputs(model: keras.Model, images: Any) -> dict[str, NDArray[np.float32]]:
    """Return the output of each stage, float32 [n, height, width, channels], by the stage's name.

    Args:
        model: its layers are named by stage; not the head.
        images: standardized, float32 [n, height, width, channels].
    """
    outputs = with_layer_outputs(model)
    last = {name.split("_")[0]: output for name, output in outputs.output.items()}
    wanted = {stage: last[stage] for stage in stages(model) if stage != HEAD}
    parts = keras.Model(outputs.input, wanted)
    found = [parts(images[start : start + 500], training=False) for start in range(0, len(images), 500)]
    return {stage: np.concatenate([part[stage] for part in found]) for stage in wanted}


def probe(
    model: keras.Model, train: tuple[Any, NDArray[Any]], test: tuple[Any, NDArray[Any]]
) -> dict[str, float]:
    """Return, for each stage, the accuracy of a linear classifier on its output.

    The classifier is ridge regression on one-hot targets, solved exactly; the network isn't trained.

    Args:
        model: whose stages are probed.
        train, test: standardized images [n, height, width, channels] and labels int [n].
    """
    classes = int(max(train[1].max(), test[1].max())) + 1
    outputs = [stage_outputs(model, images) for images, _ in (train, test)]
    accuracies = {}
    for stage in outputs[0]:
        known, new = (_pooled(part[stage]) for part in outputs)
        mean = known.mean(axis=0)
        known, new = known - mean, new - mean
        penalty = RIDGE * known.var() * np.sqrt(len(known)) * np.eye(known.shape[1])
        weights = np.linalg.solve(
            known.T @ known + penalty, known.T @ (np.eye(classes)[train[1]] - 1 / classes)
        )
        accuracies[stage] = float(((new @ weights).argmax(axis=1) == test[1]).mean())
    return accuracies


def probe_part(model: keras.Model, part: Manifest) -> dict[str, float]:
    """Return ``probe`` for the first 600 training and 400 test images of a data set."""
    counts = {"train": 600, "test": 400}
    splits = {name: load_split(part, name) for name in counts}
    arrays = [
        (standardize(images[: counts[name]], part), labels[: counts[name]])
        for name, (images, labels) in splits.items()
    ]
    return probe(model, *arrays)


def _pooled(maps: NDArray[np.float32]) -> NDArray[np.float64]:
    size = maps.shape[1] // GRID
    return tf.nn.avg_pool2d(maps, size, size, "VALID").numpy().reshape(len(maps), -1).astype(np.float64)


def draw_maps(
    images: NDArray[np.uint8], outputs: Mapping[str, NDArray[np.float32]], names: Sequence[str]
) -> "Figure":
    """Draw images, and beside each what three channels of every stage make of it.

    Args:
        images: uint8 [n, height, width, 3].
        outputs: of each stage, [n, height, width, channels].
        names: of the images.
    """
    shown = 3
    with drawing(9.5, 1.05 * len(images) + 0.3, f"Outputs of the stages for {', '.join(names)}") as figure:
        axes = figure.subplots(len(images), 1 + shown * len(outputs))
        for row, (image, name) in enumerate(zip(images, names, strict=True)):
            axes[row, 0].imshow(image, interpolation="nearest")
            axes[row, 0].set_ylabel(name, fontsize=8)
            for place, (stage, maps) in enumerate(outputs.items()):
                strongest = np.argsort(-maps.var(axis=(0, 1, 2)))[:shown]
                for column, channel in enumerate(strongest):
                    axis = axes[row, 1 + shown * place + column]
                    axis.imshow(maps[row, :, :, channel], cmap="magma", interpolation="nearest")
                    if row == 0 and column == 1:
                        axis.set_title(stage, loc="center", fontsize=9)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0, 0].set_title("image", loc="center", fontsize=9)
    return figure
