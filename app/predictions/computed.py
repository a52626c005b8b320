"""Predictions of a whole split that a network was asked for. Doesn't import TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.predictions import Predictions
from labkit.data.manifest import Manifest
from labkit.data.shards import SplitImages, find_split, read_labels
from labkit.training.scores import multi_label_scores, single_label_scores

__all__ = ["computed_predictions", "split_labels"]

PART = 2_000  # images that are read at a time, so that progress is shown


def split_labels(
    manifest: Manifest, split: str, progress: Callable[[int, int], None] = lambda done, of: None
) -> NDArray[np.int32]:
    """Return the labels of a split, int32 [n], or zeros and ones [n, classes].

    Raises InputError if there is no such split, or if a shard is missing or damaged.
    """
    count = find_split(manifest, split).count
    parts = []
    for start in range(0, count, PART):
        progress(start, count)
        parts.append(read_labels(manifest, split, np.arange(start, min(start + PART, count))))
    return np.concatenate(parts) if parts else np.zeros((0, *manifest.target_shape), np.int32)


def computed_predictions(
    manifest: Manifest,
    split: str,
    step: int,
    labels: NDArray[np.int32],
    probabilities: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> Predictions:
    """Return what a network of ``step`` says about a split, as an evaluation would have recorded it.

    Args:
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        step: of the checkpoint.
        labels: int [n], or zeros and ones [n, classes].
        probabilities: float64 [n, classes].
        losses: float64 [n] in nats.
    """
    return Predictions(
        images=SplitImages(manifest, split),
        labels=labels.astype(np.int64),
        probabilities=probabilities.astype(np.float32),
        index=np.arange(len(labels), dtype=np.int64),
        classes=list(manifest.classes),
        summary=_summary(split, step, labels, probabilities, losses),
        computed_losses=losses,
    )


def _summary(
    split: str,
    step: int,
    labels: NDArray[np.int32],
    probabilities: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> dict[str, Any]:
    known = {"split": split, "checkpoint_step": step, "examples": len(labels)}
    if not len(labels):
        return known
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of 0 or 1, and NaN
        logits = np.log(probabilities)
        if labels.ndim == 2:
            scores = multi_label_scores(labels, logits - np.log1p(-probabilities))
        else:
            scores = single_label_scores(labels, logits)
    return {**scores, **known, "loss": float(losses.mean())}
