"""Predictions of a split, written into the run directory for the dashboard and the notebook."""

import io
import os
from typing import Any

import numpy as np

from labkit.data.loading import load_split
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.training.evaluate import Evaluation
from labkit.training.scores import class_metrics

__all__ = ["write_predictions"]


def write_predictions(
    run: RunDirectory, evaluation: Evaluation, manifest: Manifest, *, checkpoint_step: int
) -> dict[str, Any]:
    """Write ``predictions/<split>.npz`` and ``.json``, each whole or not at all; return the JSON's content.

    The archive holds images uint8 [n, height, width, channels], labels int32 [n], or [n, num_classes] where
    an image has several, probabilities float32 [n, num_classes] and index int64 [n]; the JSON file the
    figures of ``per_class`` and the confusion, null for several labels.
    """
    run.predictions_path.mkdir(exist_ok=True)
    images, _ = load_split(manifest, evaluation.split)
    archive = io.BytesIO()
    # Pixels of photographs hardly compress, and a page that opens at once is worth the 30 MB.
    np.savez(
        archive,
        images=images[evaluation.index],
        labels=evaluation.labels,
        probabilities=evaluation.probabilities.astype(np.float32),
        index=evaluation.index,
    )
    path = run.predictions_path / f"{evaluation.split}.npz"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(archive.getbuffer())
    os.replace(temporary, path)
    confusion = evaluation.confusion()
    figures: dict[str, Any] = evaluation.metrics() | {
        "checkpoint_step": checkpoint_step,
        "classes": list(manifest.classes),
        "per_class": per_class(evaluation, manifest.classes),
        "confusion": None if confusion is None else confusion.tolist(),
    }
    write_json_atomic(run.predictions_path / f"{evaluation.split}.json", figures)
    return figures


def per_class(evaluation: Evaluation, classes: tuple[str, ...]) -> list[dict[str, float | int | str | None]]:
    """Return the figures of each class: see ``labkit.training.scores.class_metrics``."""
    return class_metrics(evaluation.labels, evaluation.predictions, classes)
