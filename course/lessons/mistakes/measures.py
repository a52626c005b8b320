"""What lesson 09 measures: calibration, slices of a test set, and what a map of pixels is worth."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.network import gradient_map, occlusion_map
from labkit.analysis.slices import Slice, slices_of
from labkit.training.scores import single_label_scores

if TYPE_CHECKING:
    from labkit.analysis.network import Classifier
    from labkit.analysis.predictions import Predictions
    from labkit.data.manifest import Manifest

Floats = NDArray[np.float64]


class Reliability(NamedTuple):
    """Predictions in bins of equal width of their confidence.

    ``edges``: float [bins + 1]. ``confidence``, ``accuracy``: mean of each bin, float [bins], NaN in an empty
    one. ``counts``: int [bins].
    """

    edges: Floats
    confidence: Floats
    accuracy: Floats
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The expected calibration error (Guo et al., 2017): mean gap of the bins, by their counts."""
        gaps = np.nan_to_num(np.abs(self.confidence - self.accuracy))
        return float((gaps * self.counts).sum() / self.counts.sum())


def reliability(probabilities: NDArray[Any], labels: NDArray[Any]) -> Reliability:
    """Sort predictions into ten bins by their confidence, the probability of the predicted class.

    The bins have equal width, from 0 to 1. An edge belongs to the bin below it.

    Args:
        probabilities: float [n, classes].
        labels: int [n].
    """
    bins = 10
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(number, values, bins) / counts for values in (confidence, right)]
    return Reliability(np.linspace(0, 1, bins + 1), means[0], means[1], counts)


def best_temperature(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the temperature of the smallest cross-entropy, from 0.05 to 20, within 1 %.

    Args:
        logits: float [n, classes], of examples that weren't trained on.
        labels: int [n].
    """
    grid = np.geomspace(0.05, 20, 400)
    return float(min(grid, key=lambda t: single_label_scores(labels, logits / t)["loss"]))


def image_properties(predictions: "Predictions", manifest: "Manifest") -> dict[str, Floats]:
    """Return properties of each image by name, float64 [n]: brightness and contrast (0 to 255).

    With the whole drawn data set ``shapes`` and predictions for its test split, also the radius of the shape
    in pixels.
    """
    grey = predictions.images[np.arange(len(predictions))].mean(axis=-1)
    found = {"brightness": grey.mean(axis=(1, 2)), "contrast": grey.std(axis=(1, 2))}
    if manifest.dataset == "shapes" and manifest.all_classes is None:
        from labkit.data.shapes import radii

        drawn = radii(manifest.seed, manifest.count("test"), stream=1)
        found["radius"] = drawn[predictions.index].astype(np.float64)
    return found


def chance_slices(predictions: "Predictions", size: int, count: int) -> list[Slice]:
    """Return ``count`` slices of ``size`` examples each, drawn by chance: they have no meaning at all."""
    generator = np.random.default_rng(0)
    drawn = [generator.permutation(len(predictions)) < size for _ in range(count)]
    return slices_of(predictions, {f"{number}": part for number, part in enumerate(drawn, 1)})


def largest_by_chance(mistakes: int, kinds: int, count: int) -> float:
    """Return the share of the ``count`` most frequent kinds if each mistake falls on a kind by chance.

    It is the largest share in 200 random draws.
    """
    drawn = np.random.default_rng(0).multinomial(mistakes, np.full(kinds, 1 / kinds), size=200)
    return float((np.sort(drawn, axis=1)[:, -count:].sum(axis=1) / max(mistakes, 1)).max())


def maps_of(
    network: "Classifier", images: NDArray[np.uint8], labels: NDArray[Any], stride: int | None = None
) -> dict[str, Floats]:
    """Return the gradient and the occlusion map of each image, by name, float64 [n, height, width].

    Args:
        network: the trained network.
        images: uint8 [n, height, width, channels].
        labels: the class that each map is about, int [n].
        stride: pixels between two positions of the covering square; None: as ``occlusion_map`` has it.
    """
    pairs = list(zip(images, labels, strict=True))
    gradients = [gradient_map(network, image, label) for image, label in pairs]
    occlusions = [occlusion_map(network.probabilities, image, label, stride=stride) for image, label in pairs]
    return {"gradient": np.array(gradients), "occlusion": np.array(occlusions)}


def fall_without(
    predict: Callable[[NDArray[np.uint8]], NDArray[Any]],
    images: NDArray[np.uint8],
    labels: NDArray[Any],
    maps: Floats,
) -> Floats:
    """Return how much the probability of the label falls without the most important tenth of the pixels.

    The pixels get the image's mean colour (the deletion test of Petsiuk et al., 2018).

    Args:
        predict: returns probabilities [n, classes] for images.
        images: uint8 [n, height, width, channels].
        labels: the class whose probability is followed, int [n].
        maps: importance of each pixel, float [n, height, width].

    Returns float64 [n].
    """
    flat = maps.reshape(len(maps), -1)
    chosen = np.zeros(flat.shape, bool)
    most = np.argsort(-flat, axis=1, kind="stable")[:, : round(0.1 * flat.shape[1])]
    np.put_along_axis(chosen, most, True, axis=1)
    mean = images.mean(axis=(1, 2), keepdims=True).round().astype(np.uint8)
    without = np.where(chosen.reshape(maps.shape)[..., None], mean, images)
    rows = np.arange(len(images))
    return predict(images)[rows, labels].astype(np.float64) - predict(without)[rows, labels]
