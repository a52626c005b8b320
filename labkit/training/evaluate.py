"""Evaluation of a whole split: every example counted exactly once."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest
from labkit.data.pipeline import InputShare, eval_dataset

__all__ = ["Evaluation", "evaluate_split", "gathered"]


@dataclass(frozen=True)
class Evaluation:
    """Logits of every example of a split, in the split's order, and the figures that follow.

    ``logits`` float32 [n, num_classes]; ``labels`` int32 [n]; ``index`` int64 [n], the examples' numbers
    within the split; ``seconds`` of wall time. ``augmented`` is the same with test-time augmentation.
    """

    split: str
    logits: np.ndarray
    labels: np.ndarray
    index: np.ndarray
    seconds: float
    augmented: "Evaluation | None" = None

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
        """Return the figures of a metrics row; with ``tta_`` before the name, with test-time augmentation."""
        augmented: dict[str, float | int | str] = {}
        if self.augmented is not None:
            augmented = {
                "tta_loss": self.augmented.loss,
                "tta_accuracy": self.augmented.accuracy,
                "tta_seconds": self.augmented.seconds,
            }
        return augmented | {
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
    views_step=None,
    on_batch=lambda: None,
    num_workers: int = 1,
    worker_number: int = 0,
) -> Evaluation:
    """Run the model over a split.

    Args:
        strategy: its replicas share each batch.
        predict_step: from ``make_predict_step``.
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        global_batch_size: examples a step; any size, the last batch is padded and the padding left out.
        views_step: the same with test-time augmentation; the split is gone through once more with it.
        on_batch: called after each batch.
        num_workers, worker_number: where several processes evaluate together, how many and which this is.
            Every one of them returns the evaluation of the whole split.

    Raises RuntimeError where an example came more or less than once.
    """
    if views_step is not None:
        plain, augmented = (
            evaluate_split(
                strategy,
                step,
                manifest,
                split,
                global_batch_size=global_batch_size,
                on_batch=on_batch,
                num_workers=num_workers,
                worker_number=worker_number,
            )
            for step in (predict_step, views_step)
        )
        return replace(plain, augmented=augmented)
    started = time.perf_counter()
    replicas = strategy.num_replicas_in_sync
    local = replicas // num_workers
    share = InputShare(num_replicas=replicas, first_replica=worker_number * local, num_local_replicas=local)
    batches = strategy.distribute_datasets_from_function(
        lambda _: eval_dataset(manifest, split, global_batch_size=global_batch_size, share=share)
    )
    collected: list[list[np.ndarray]] = [[] for _ in range(local)]
    for images, labels, index, weight in batches:
        per_replica = zip(
            *map(strategy.experimental_local_results, (predict_step(images), labels, index, weight)),
            strict=True,
        )
        for replica, values in enumerate(per_replica):
            collected[replica].append(_as_rows(*(value.numpy() for value in values)))
        on_batch()
    rows = _gathered(strategy, [np.concatenate(parts) for parts in collected], num_workers)
    rows = rows[rows[:, -1] > 0]
    logits = rows[:, :-3].astype(np.float32)
    labels, index = rows[:, -3].astype(np.int32), rows[:, -2].astype(np.int64)
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(manifest.count(split))):
        raise RuntimeError(f"the {split} split was not evaluated once per example: {len(index)} results")
    return Evaluation(split, logits[order], labels[order], index[order], time.perf_counter() - started)


def _as_rows(logits: np.ndarray, labels: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return all results of a batch as one array, float64 [batch, num_classes + 3]: exact for every one."""
    return np.concatenate(
        [logits, labels[:, None], index[:, None], weight[:, None]], axis=1, dtype=np.float64
    )


def _gathered(strategy: tf.distribute.Strategy, local: list[np.ndarray], num_workers: int) -> np.ndarray:
    """Return the rows of all replicas of all processes; ``local`` has an array for each of this one's."""
    if num_workers == 1:
        return np.concatenate(local)
    remaining = iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining)))
    return gathered(strategy)(values).numpy()


@functools.lru_cache(maxsize=1)
def gathered(strategy: tf.distribute.Strategy) -> Callable[[Any], tf.Tensor]:
    """Return a function of a value for each replica that gives all of them in order, along the first axis."""

    # Compiled once: the eager call compiles at each use, and TensorFlow warns of that.
    @tf.function(reduce_retracing=True)
    def gather(values):
        return strategy.gather(values, axis=0)

    return gather
