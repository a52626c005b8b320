"""Predictions in a run directory: read, ordered, filtered, counted. Needs no TensorFlow."""

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.training.scores import class_metrics, indicators, right

__all__ = ["Predictions", "load_predictions", "signature"]

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Predictions:
    """One evaluated split.

    ``images`` uint8 [n, height, width, 3], ``labels`` int [n], or [n, classes] of zeros and ones where an
    image has several, ``probabilities`` float32 [n, classes], ``index`` int64 [n] (place in the split),
    ``summary`` what the JSON beside them says, or empty.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    index: NDArray[np.int64]
    classes: list[str]
    summary: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def multi_label(self) -> bool:
        """Whether an image has any number of the classes rather than one."""
        return self.labels.ndim == 2

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """The most probable class of each example, int64 [n]; or all over one half, bool [n, classes]."""
        return self.probabilities > 0.5 if self.multi_label else self.probabilities.argmax(axis=1)

    @cached_property
    def has(self) -> NDArray[np.bool_]:
        """Which classes each example has, bool [n, classes]."""
        return indicators(self.labels, len(self.classes))

    @cached_property
    def given(self) -> NDArray[np.bool_]:
        """Which classes each example is predicted to have, bool [n, classes]."""
        return indicators(self.predicted, len(self.classes))

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether the prediction isn't the label; with several, whether one of them isn't right."""
        return ~right(self.predicted, self.labels)

    def names(self, classes: NDArray[np.bool_]) -> str:
        """Return the names of the classes, one row of ``has`` or ``given``, for people."""
        return ", ".join(self.classes[place] for place in np.flatnonzero(classes)) or "none"

    @cached_property
    def confusion(self) -> NDArray[np.int64] | None:
        """Counts ``int64 [true, predicted]``; None with several labels, none of which stands for another."""
        if self.multi_label:
            return None
        counts = np.zeros((len(self.classes),) * 2, np.int64)
        np.add.at(counts, (self.labels, self.predicted), 1)
        return counts

    @cached_property
    def _wrong_first(self) -> Indices:
        # Wrong ones by falling confidence, then right ones by rising confidence: what to look at first.
        if self.multi_label:  # the label that is the farthest off decides
            rank = -np.abs(self.probabilities - self.has).max(axis=1)
        else:
            confidence = self.probabilities.max(axis=1)
            rank = np.where(self.wrong, -confidence, confidence)
        return np.lexsort((rank, ~self.wrong))

    def select(
        self, true: int | None = None, predicted: int | None = None, wrong_only: bool = False
    ) -> Indices:
        """Return the places of the examples asked for, the most confident mistakes first."""
        order = self._wrong_first
        kept = np.ones(len(order), bool)
        if true is not None:
            kept &= self.has[order, true]
        if predicted is not None:
            kept &= self.given[order, predicted]
        if wrong_only:
            kept &= self.wrong[order]
        return order[kept]

    def per_class(self) -> list[dict[str, Any]]:
        """Return ``class`` (its name), ``examples``, and what ``class_metrics`` gives."""
        rows = class_metrics(self.labels, self.predicted, self.classes)
        return [{"class": row.pop("name"), "examples": row.pop("count"), **row} for row in rows]


def signature(run: RunDirectory, split: str = "test") -> tuple[tuple[int, int], ...]:
    """Return time and size of the files of a split's predictions: the same as long as they are."""
    found = []
    for path in (run.predictions_path / f"{split}.npz", run.predictions_path / f"{split}.json"):
        try:
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def load_predictions(run: RunDirectory, split: str = "test") -> Predictions:
    """Read and check the predictions of one split.

    Raises FileNotFoundError where there are none, InputError where the file is damaged or doesn't hold
    what it should. The arrays are read-only.
    """
    path = run.predictions_path / f"{split}.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("images", "labels", "probabilities")}
            index = archive["index"] if "index" in archive else np.arange(len(arrays["labels"]))
    except FileNotFoundError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
    ) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    for array in (*arrays.values(), index):
        array.setflags(write=False)
    images, labels, probabilities = arrays["images"], arrays["labels"], arrays["probabilities"]
    count = len(labels) if labels.ndim in (1, 2) else -1
    good = (
        images.dtype == np.uint8
        and images.ndim == 4
        and images.shape[3] in (1, 3)
        and probabilities.ndim == 2
        and np.issubdtype(probabilities.dtype, np.floating)
        and np.issubdtype(labels.dtype, np.integer)
        and len(images) == len(probabilities) == len(index) == count
        and (labels.ndim == 1 or labels.shape == probabilities.shape)
        and (
            labels.size == 0
            or (labels.min() >= 0 and labels.max() < (probabilities.shape[1] if labels.ndim == 1 else 2))
        )
    )
    if not good:
        shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())
        raise InputError(f"{path} is damaged: {shapes} don't belong together")
    summary = _summary(run, split, count)
    classes = summary.get("classes")
    if not isinstance(classes, list) or len(classes) != probabilities.shape[1]:
        classes = [f"class {number}" for number in range(probabilities.shape[1])]
    return Predictions(images, labels, probabilities, index, [str(name) for name in classes], summary)


def _summary(run: RunDirectory, split: str, count: int) -> dict[str, Any]:
    try:
        value = json.loads((run.predictions_path / f"{split}.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    # The two files are replaced one after the other: a summary of another evaluation is none.
    return value if isinstance(value, dict) and value.get("examples") == count else {}
