"""How good predictions are on parts of a split: by class, brightness, or a column that came with the data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.inference import half_width
from labkit.analysis.predictions import Predictions
from labkit.data.manifest import Manifest, columns_of
from labkit.errors import InputError, unknown_name_error

CLASS, BRIGHTNESS = "class", "brightness"
MOST_VALUES = 20  # different ones of a column; more numbers become quarters
_QUARTERS = 4
_Z = 1.959964  # the 0.975 quantile of the normal distribution, for intervals of 95 %
_AT_ONCE = 1_000  # images


@dataclass(frozen=True)
class Slice:
    """A part of a split: its name, its images, and their accuracy from 0 to 1 with an interval of 95 %.

    Where labels are numbers, ``value`` is the mean absolute error, in their unit.
    """

    name: str
    count: int
    value: float
    low: float
    high: float


def names_of_slices(manifest: Manifest, split: str) -> list[str]:
    """Return what the images of a split can be told apart by."""
    of_class = [] if manifest.targets == "numbers" else [CLASS]
    return list(dict.fromkeys([*of_class, BRIGHTNESS, *columns_of(manifest, split)]))


def check_by(manifest: Manifest, split: str, by: str) -> None:
    """Raise InputError for what ``slices_by`` refuses."""
    names, columns = names_of_slices(manifest, split), columns_of(manifest, split)
    if by not in names:
        raise unknown_name_error("column of --by", by, names)
    if by in columns:
        _parts(by, columns[by])


def slices_by(predictions: Predictions, manifest: Manifest, split: str, by: str) -> list[Slice]:
    """Return the parts of a split, the worst first.

    Args:
        predictions: of the split.
        manifest: of the data set.
        split: its name.
        by: ``class`` (an image with several labels counts for each), ``brightness`` (the mean of the pixels,
            in quarters of the images), or a column, which may have such a name. One of numbers with many
            values becomes quarters, too.

    Raises InputError for another name, and for a column with too many texts to be parts.
    """
    check_by(manifest, split, by)
    columns = columns_of(manifest, split)
    if by in columns:
        parts = _parts(by, [columns[by][row] for row in predictions.index.tolist()])
    elif by == CLASS:
        parts = {name: predictions.has[:, place] for place, name in enumerate(predictions.classes)}
    else:
        parts = quarters(_brightness(predictions))
    return sorted(slices_of(predictions, parts), key=lambda one: one.value, reverse=predictions.are_numbers)


def slices_of(predictions: Predictions, parts: Mapping[str, NDArray[np.bool_]]) -> list[Slice]:
    """Return the parts that have images. ``parts``: which images are in each, bool [n], by its name."""
    each: NDArray[Any] = (
        ~predictions.wrong if not predictions.are_numbers else predictions.errors.mean(axis=1)
    )
    interval: Any = _interval_of_errors if predictions.are_numbers else accuracy_interval
    return [Slice(name, int(part.sum()), *interval(each[part])) for name, part in parts.items() if part.any()]


def _brightness(predictions: Predictions) -> NDArray[np.float64]:
    starts = range(0, len(predictions), _AT_ONCE)
    parts = [predictions.images[start : start + _AT_ONCE] for start in starts]
    return np.concatenate(
        [part.mean(axis=(1, 2, 3), dtype=np.float64) / 255 for part in parts] or [np.zeros(0)]
    )


def _parts(by: str, values: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return the rows of each value of a column, or of quarters of its numbers."""
    texts = np.array(values)
    different = list(dict.fromkeys(values))
    if len(different) <= MOST_VALUES:
        return {name or "(empty)": texts == name for name in sorted(different)}
    try:
        numbers = np.array([float(text) if text else math.nan for text in values])
    except ValueError:
        raise InputError(
            f"the column {by!r} has {len(different):,} different texts; allowed: {MOST_VALUES}, or numbers"
        ) from None
    return quarters(numbers)


def quarters(values: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
    """Return the rows of each quarter, by the values at its ends; those without a number apart."""
    known = np.isfinite(values)
    parts = {} if known.all() else {"(no number)": ~known}
    if not known.any():
        return parts
    ends = np.unique(np.quantile(values[known], np.linspace(0, 1, _QUARTERS + 1)))
    places = np.digitize(values, ends[1:-1]) if len(ends) > 2 else np.zeros(len(values), int)
    texts = different_texts(ends)
    for place in range(max(1, len(ends) - 1)):
        parts[f"{texts[place]} to {texts[min(place + 1, len(ends) - 1)]}"] = known & (places == place)
    return parts


def different_texts(values: NDArray[np.float64]) -> list[str]:
    """Return different numbers as texts with four digits, or as many as are needed to tell them apart."""
    before_the_point = len(str(int(np.abs(values).max())))
    least = max(4, before_the_point) if before_the_point < 16 else 4
    found = ([f"{value:.{digits}g}" for value in values] for digits in range(least, 18))
    return next(texts for texts in found if len(set(texts)) == len(values))


def accuracy_interval(right: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of right predictions and its interval (Wilson, 1927)."""
    count, share = len(right), float(right.mean())
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def _interval_of_errors(errors: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean error and its t interval, which ends at 0; none of a single error."""
    mean = float(errors.mean())
    half = half_width(float(errors.std(ddof=1)), len(errors)) if len(errors) > 1 else math.nan
    return mean, max(mean - half, 0.0), mean + half  # max keeps a NaN that stands first
