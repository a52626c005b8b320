"""Accuracy of parts of a test set, with intervals that say how little a small part tells."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError

if TYPE_CHECKING:
    from labkit.analysis.predictions import Predictions
    from labkit.data.manifest import Manifest


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the interval of Wilson (1927) for a share: 95 % of such intervals contain the true one.

    Args:
        right: right predictions.
        total: all predictions, at least one.
        z: 1.96 for 95 %.
    """
    share, extra = right / total, z * z / total
    centre = (share + extra / 2) / (1 + extra)
    half = z / (1 + extra) * (share * (1 - share) / total + extra / total / 4) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


class Slice(NamedTuple):
    """A part of a test set: its name, its right predictions and all its predictions."""

    name: str
    right: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy."""
        return wilson(self.right, self.total)

    def differs_from(self, accuracy: float) -> bool:
        """Return whether ``accuracy`` is outside of the interval."""
        low, high = self.interval
        return not low <= accuracy <= high


def image_properties(predictions: "Predictions", manifest: "Manifest") -> dict[str, NDArray[np.float64]]:
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


def by_class(predictions: "Predictions") -> list[Slice]:
    """Return a slice for each class that occurs."""
    right = ~predictions.wrong
    masks = ((name, predictions.labels == number) for number, name in enumerate(predictions.classes))
    return [Slice(name, int(right[mask].sum()), int(mask.sum())) for name, mask in masks if mask.any()]


def by_quarters(predictions: "Predictions", values: NDArray[Any]) -> list[Slice]:
    """Return four slices of equal size by a property, its lowest values first. A name is a range of values.

    Args:
        predictions: of n examples.
        values: the property, float [n].
    """
    parts = np.array_split(np.argsort(values, kind="stable"), 4)
    return [
        Slice(
            f"{values[part].min():.3g} to {values[part].max():.3g}",
            int((~predictions.wrong[part]).sum()),
            len(part),
        )
        for part in parts
    ]


def chance_slices(predictions: "Predictions", size: int, count: int) -> Sequence[Slice]:
    """Return ``count`` slices of ``size`` examples each, drawn by chance: they have no meaning at all."""
    generator = np.random.default_rng(0)
    right = ~predictions.wrong
    return [
        Slice(f"{number}", int(right[generator.choice(len(right), size, replace=False)].sum()), size)
        for number in range(1, count + 1)
    ]


def most_confused(predictions: "Predictions", count: int) -> tuple[list[str], float]:
    """Return the ``count`` most frequent kinds of mistakes as text, and their share of all mistakes."""
    confusion = predictions.confusion
    if confusion is None:
        raise InputError("images with several labels have no confusion matrix")
    mistakes = confusion - np.diag(confusion.diagonal())
    kinds = [np.unravel_index(at, mistakes.shape) for at in np.argsort(-mistakes, axis=None)[:count]]
    names = predictions.classes
    texts = [f"{mistakes[true, said]}× {names[true]} as {names[said]}" for true, said in kinds]
    return texts, float(sum(mistakes[kind] for kind in kinds) / max(mistakes.sum(), 1))


def largest_by_chance(mistakes: int, kinds: int, count: int) -> float:
    """Return the share of the ``count`` most frequent kinds if each mistake falls on a kind by chance.

    It is the largest share in 200 random draws.
    """
    drawn = np.random.default_rng(0).multinomial(mistakes, np.full(kinds, 1 / kinds), size=200)
    return float((np.sort(drawn, axis=1)[:, -count:].sum(axis=1) / max(mistakes, 1)).max())
