"""Writes the predictions of a split into a run. Needs no TensorFlow."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.checkpoints import checkpoint_path
from labkit.run_directory.directory import replacing
from labkit.run_directory.files import read_object
from labkit.run_directory.reader import own_test_step_of
from labkit.run_directory.rows import valid
from labkit.training.scores import class_metrics, confusion_counts, number_metrics


def predictions_name(run: RunDirectory, split: str, step: int) -> str:
    """Return the name of the files with the predictions of a checkpoint: ``test``, or ``test-step-00000100``.

    The split alone names the newest, but another checkpoint doesn't take the place of the one that the run is
    judged by.
    """
    kept = read_object(run.predictions_path / f"{split}.json").get("checkpoint_step")
    if kept in (None, step) or kept != own_test_step_of(run):
        return split
    return f"{split}-{checkpoint_path(run.path, step).name}"


def record_predictions(
    run: RunDirectory,
    split: str,
    arrays: Mapping[str, np.ndarray],
    row: Mapping[str, Any],
    classes: Sequence[str],
    predicted: np.ndarray | None = None,
) -> dict[str, Any]:
    """Write ``predictions/<split>.npz`` and ``.json``, each atomically; return the JSON's content.

    The JSON file holds the row, the metrics of each class as ``per_class``, and the confusion matrix, which
    is null for several labels, for numbers, and for more than ``MAX_CONFUSION_CLASSES``. Numbers that aren't
    finite are null, as in rows.

    Args:
        run: the run directory.
        split: names the files; or their name, where it is another (``predictions_name``).
        arrays: labels int32 [n], or [n, num_classes] if an image has several, or float32 [n, numbers];
            probabilities float32 [n, num_classes], which for numbers are the predicted numbers; index int64
            [n]; and perhaps images uint8 [n, height, width, channels].
        row: of the evaluation, with ``checkpoint_step``.
        classes: their names, or those of the numbers.
        predicted: classes int64 [n], or labels bool [n, num_classes]. Default: the most probable class.
    """
    run.predictions_path.mkdir(exist_ok=True)
    archive = io.BytesIO()
    # Uncompressed (30 MB), because photographs hardly compress and the dashboard loads it faster.
    np.savez(archive, **arrays)  # type: ignore[arg-type]  # numpy's own flag is meant
    with replacing(run.predictions_path / f"{split}.npz") as temporary:
        temporary.write_bytes(archive.getbuffer())
    labels = arrays["labels"]
    if predicted is None:
        predicted = arrays["probabilities"].argmax(axis=1)
    are_numbers = labels.dtype.kind == "f"
    confusion = None if are_numbers else confusion_counts(labels, predicted, len(classes))
    each = number_metrics if are_numbers else class_metrics
    content = dict(row) | {
        "classes": list(classes),
        "per_class": each(labels, predicted, classes),
        "confusion": None if confusion is None else confusion.tolist(),
    }
    write_json_atomic(run.predictions_path / f"{split}.json", valid(content))
    return content
