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
from labkit.runs import RunDirectory

__all__ = ["Predictions", "load_predictions", "signature"]

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Predictions:
    """One evaluated split.

    ``images`` uint8 [n, height, width, 3], ``labels`` int [n], ``probabilities`` float32 [n, classes],
    ``index`` int64 [n] (place in the split), ``summary`` what the JSON beside them says, or empty.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    index: NDArray[np.int64]
    classes: list[str]
    summary: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable class of each example, ``int64 [n]``."""
        return self.probabilities.argmax(axis=1)

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        return self.predicted != self.labels

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """Counts ``int64 [true, predicted]``."""
        counts = np.zeros((len(self.classes),) * 2, np.int64)
        np.add.at(counts, (self.labels, self.predicted), 1)
        return counts

    @cached_property
    def _wrong_first(self) -> Indices:
        confidence = self.probabilities.max(axis=1)
        # Wrong ones by falling confidence, then right ones by rising confidence: what to look at first.
        return np.lexsort((np.where(self.wrong, -confidence, confidence), ~self.wrong))

    def select(
        self, true: int | None = None, predicted: int | None = None, wrong_only: bool = False
    ) -> Indices:
        """Return the places of the examples asked for, the most confident mistakes first."""
        order = self._wrong_first
        kept = np.ones(len(order), bool)
        if true is not None:
            kept &= self.labels[order] == true
        if predicted is not None:
            kept &= self.predicted[order] == predicted
        if wrong_only:
            kept &= self.wrong[order]
        return order[kept]

    def per_class(self) -> list[dict[str, Any]]:
        """Return name, examples, accuracy (recall) and precision of each class; None where undefined."""
        right, true, predicted = self.confusion.diagonal(), self.confusion.sum(1), self.confusion.sum(0)
        return [
            {
                "class": name,
                "examples": int(true[place]),
                "accuracy": float(right[place] / true[place]) if true[place] else None,
                "precision": float(right[place] / predicted[place]) if predicted[place] else None,
            }
            for place, name in enumerate(self.classes)
        ]


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
    count = len(labels) if labels.ndim == 1 else -1
    good = (
        images.dtype == np.uint8
        and images.ndim == 4
        and images.shape[3] in (1, 3)
        and probabilities.ndim == 2
        and np.issubdtype(probabilities.dtype, np.floating)
        and np.issubdtype(labels.dtype, np.integer)
        and len(images) == len(probabilities) == len(index) == count
        and (count == 0 or (labels.min() >= 0 and labels.max() < probabilities.shape[1]))
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
