"""Predictions of a split, written into the run directory for the dashboard and the notebook."""

import io
import os
from typing import Any

import numpy as np

from labkit.data.loading import load_split
from labkit.data.manifest import Manifest
from labkit.runs import RunDirectory, write_json_atomic
from labkit.training.evaluate import Evaluation

__all__ = ["write_predictions"]


def write_predictions(
    run: RunDirectory, evaluation: Evaluation, manifest: Manifest, *, checkpoint_step: int
) -> dict[str, Any]:
    """Write ``predictions/<split>.npz`` and ``.json``, each whole or not at all; return the JSON's content.

    The archive holds images uint8 [n, height, width, channels], labels int32 [n], probabilities float32
    [n, num_classes] and index int64 [n]; the JSON file the figures of ``per_class`` and the confusion.
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
    figures: dict[str, Any] = evaluation.metrics() | {
        "checkpoint_step": checkpoint_step,
        "classes": list(manifest.classes),
        "per_class": per_class(evaluation, manifest.classes),
        "confusion": evaluation.confusion().tolist(),
    }
    write_json_atomic(run.predictions_path / f"{evaluation.split}.json", figures)
    return figures


def per_class(evaluation: Evaluation, classes: tuple[str, ...]) -> list[dict[str, float | int | str | None]]:
    """Return name, count, accuracy (recall) and precision of each class; None where nothing was counted."""
    confusion = evaluation.confusion()
    right = confusion.diagonal()
    return [
        {
            "name": name,
            "count": int(of_class),
            "accuracy": float(hits / of_class) if of_class else None,
            "precision": float(hits / predicted) if predicted else None,
        }
        for name, hits, of_class, predicted in zip(
            classes, right, confusion.sum(axis=1), confusion.sum(axis=0), strict=True
        )
    ]
