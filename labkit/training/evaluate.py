"""Evaluation of a whole split: every example counted exactly once."""

import time
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest
from labkit.data.pipeline import InputShare, eval_dataset

__all__ = ["Evaluation", "evaluate_split"]


@dataclass(frozen=True)
class Evaluation:
    """Logits of every example of a split, in the split's order, and the figures that follow.

    ``logits`` float32 [n, num_classes]; ``labels`` int32 [n]; ``index`` int64 [n], the examples' numbers
    within the split; ``seconds`` of wall time.
    """

    split: str
    logits: np.ndarray
    labels: np.ndarray
    index: np.ndarray
    seconds: float

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, float64 [n, num_classes]."""
        return np.exp(self._log_probabilities())

    def _log_probabilities(self) -> np.ndarray:
        logits = self.logits.astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats, without label smoothing and weight decay."""
        return float(-self._log_probabilities()[np.arange(self.examples), self.labels].mean())

    @property
    def predictions(self) -> np.ndarray:
        """The class of the largest logit, int64 [n]."""
        return self.logits.argmax(axis=1)

    @property
    def accuracy(self) -> float:
        return float((self.predictions == self.labels).mean())

    @property
    def top5_accuracy(self) -> float:
        """Share of examples whose label is among the five largest logits (ties: the lower class first)."""
        best = np.argsort(-self.logits, axis=1, kind="stable")[:, :5]
        return float((best == self.labels[:, None]).any(axis=1).mean())

    def confusion(self) -> np.ndarray:
        """Return counts, int64 [true class, predicted class]."""
        num_classes = self.logits.shape[1]
        cells = self.labels.astype(np.int64) * num_classes + self.predictions
        return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)

    def metrics(self) -> dict[str, float | int | str]:
        """Return the figures of a metrics row."""
        return {
            "split": self.split,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "top5_accuracy": self.top5_accuracy,
            "examples": self.examples,
            "seconds": self.seconds,
        }


def evaluate_split(
    strategy: tf.distribute.Strategy,
    predict_step,
    manifest: Manifest,
    split: str,
    *,
    global_batch_size: int,
    on_batch=lambda: None,
) -> Evaluation:
    """Run the model over a split.

    Args:
        strategy: of one process; its replicas share each batch.
        predict_step: from ``make_predict_step``.
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        global_batch_size: examples a step; any size, the last batch is padded and the padding left out.
        on_batch: called after each batch.

    Raises RuntimeError where an example came more or less than once.
    """
    started = time.perf_counter()
    replicas = strategy.num_replicas_in_sync
    share = InputShare(num_replicas=replicas, num_local_replicas=replicas)
    batches = strategy.distribute_datasets_from_function(
        lambda _: eval_dataset(manifest, split, global_batch_size=global_batch_size, share=share)
    )
    collected = []
    for images, labels, index, weight in batches:
        per_replica = zip(
            *map(strategy.experimental_local_results, (predict_step(images), labels, index, weight)),
            strict=True,
        )
        for values in per_replica:
            logits, label, number, kept = (value.numpy() for value in values)
            collected.append((logits[kept > 0], label[kept > 0], number[kept > 0]))
        on_batch()
    logits, labels, index = (np.concatenate(parts) for parts in zip(*collected, strict=True))
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(manifest.count(split))):
        raise RuntimeError(f"the {split} split was not evaluated once per example: {len(index)} results")
    return Evaluation(split, logits[order], labels[order], index[order], time.perf_counter() - started)
