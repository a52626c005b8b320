"""Predictions that another program made, checked and scored as labkit's own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import InputError, short
from labkit.parts.code import first_line
from labkit.training.scores import single_label_scores

_SMALLEST = 1e-30  # in place of a probability of 0, whose logarithm is no number


@dataclass(frozen=True)
class RecordedEvaluation:
    """``arrays``: as in ``predictions/<split>.npz``. ``metrics``: loss, accuracy and more by name."""

    arrays: dict[str, np.ndarray]
    metrics: dict[str, float]
    classes: list[str]


def checked_evaluation(
    images: Any, labels: Any, probabilities: Any, classes: Sequence[str] | None
) -> RecordedEvaluation:
    """Return the predictions of a split with their metrics; arguments as of ``Recorder.predictions``.

    Raises InputError, with what is allowed, for arrays that don't fit together.
    """
    try:
        pixels, given, share = np.asarray(images), np.asarray(labels), np.asarray(probabilities, np.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"images, labels and probabilities aren't arrays: {first_line(error)}") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] not in (1, 3) or not len(pixels):
        raise InputError(
            f"images are {pixels.dtype} {list(pixels.shape)}; allowed: uint8 [n, height, width, 1 or 3]"
        )
    if share.ndim != 2 or len(share) != len(pixels) or share.shape[1] < 2:
        raise InputError(f"probabilities are {list(share.shape)}; allowed: [{len(pixels)}, classes]")
    if given.dtype.kind not in "iu" or given.shape != (len(pixels),):
        raise InputError(
            f"labels are {given.dtype} {list(given.shape)}; allowed: whole numbers [{len(pixels)}]"
        )
    count = share.shape[1]
    if given.min() < 0 or given.max() >= count:
        raise InputError(f"labels are from {given.min()} to {given.max()}; allowed: 0 to {count - 1}")
    if not np.isfinite(share).all() or share.min() < 0 or np.abs(share.sum(axis=1) - 1).max() > 1e-3:
        raise InputError("probabilities have rows that aren't from 0 to 1 with the sum 1; give softmax's")
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Iterable)):
        raise InputError(f"classes is {short(classes)}; allowed: a list of {count} names")
    names = [f"class {number}" for number in range(count)] if classes is None else list(map(str, classes))
    if not len(names) == len(set(names)) == count:
        raise InputError(f"classes are {short(names)}; allowed: {count} different names")
    given = given.astype(np.int32)
    arrays = {
        "images": np.ascontiguousarray(pixels),
        "labels": given,
        "probabilities": share,
        "index": np.arange(len(pixels)),
    }
    metrics = single_label_scores(given, np.log(np.maximum(share, _SMALLEST)))
    return RecordedEvaluation(arrays, {**metrics, "examples": len(pixels)}, names)
