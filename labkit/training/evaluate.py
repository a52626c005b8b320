"""Evaluation of a whole split: every example counted exactly once."""

import functools
import time
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest
from labkit.data.pipeline import InputShare, eval_dataset
from labkit.distributed.gather import gathered
from labkit.training.losses import SOFTMAX, Loss

__all__ = ["Evaluation", "evaluate_split"]


@dataclass(frozen=True)
class Evaluation:
    """Logits of every example of a split, in the split's order, and the figures that follow.

    ``logits`` float32 [n, num_classes]; ``labels`` int32 [n], or [n, num_classes] of zeros and ones where an
    image has several; ``index`` int64 [n], the examples' numbers within the split; ``seconds`` of wall time.
    ``augmented`` is the same with test-time augmentation; ``loss_function`` what the model was trained with.
    """

    split: str
    logits: np.ndarray
    labels: np.ndarray
    index: np.ndarray
    seconds: float
    augmented: "Evaluation | None" = None
    loss_function: Loss = SOFTMAX

    @property
    def examples(self) -> int:
        return len(self.labels)

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax or sigmoid of the logits, float64 [n, num_classes]."""
        return self.loss_function.probabilities(self.logits)

    @property
    def predictions(self) -> np.ndarray:
        """The class of the largest logit, int64 [n]; of several all over one half, bool [n, num_classes]."""
        return self.loss_function.predictions(self.logits)

    @functools.cached_property
    def figures(self) -> dict[str, float]:
        """``loss``, without label smoothing and weight decay, ``accuracy``, what else belongs to the loss."""
        return self.loss_function.scores(self.labels, self.logits)

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats."""
        return self.figures["loss"]

    @property
    def accuracy(self) -> float:
        return self.figures["accuracy"]

    def confusion(self) -> np.ndarray | None:
        """Return counts, int64 [true class, predicted class]; None where images have several labels."""
        if self.loss_function.multi_label:
            return None
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
            **self.figures,
            "examples": self.examples,
            "seconds": self.seconds,
        }


def evaluate_split(
    strategy: tf.distribute.Strategy,
    predict_step,
    manifest: Manifest,
    split: str,
    *,
    loss: Loss = SOFTMAX,
    global_batch_size: int,
    augmented_predict_step=None,
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
        loss: that the model was trained with.
        global_batch_size: examples a step; any size, the last batch is padded and the padding left out.
        augmented_predict_step: the same with test-time augmentation, for a second pass over the split.
        on_batch: called after each batch.
        num_workers, worker_number: where several processes evaluate together, how many and which this is.
            Every one of them returns the evaluation of the whole split.

    Raises RuntimeError where an example came more or less than once, ValueError where the loss is for other
    targets than the data set has.
    """
    if loss.multi_label != manifest.multi_label:
        raise ValueError(f"{loss.name!r} isn't for {manifest.dataset}: target shape {manifest.target_shape}")
    if augmented_predict_step is not None:
        plain, augmented = (
            evaluate_split(
                strategy,
                step,
                manifest,
                split,
                loss=loss,
                global_batch_size=global_batch_size,
                on_batch=on_batch,
                num_workers=num_workers,
                worker_number=worker_number,
            )
            for step in (predict_step, augmented_predict_step)
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
    logits = rows[:, : manifest.num_classes].astype(np.float32)
    labels = rows[:, manifest.num_classes : -2].astype(np.int32).reshape(-1, *manifest.target_shape)
    index = rows[:, -2].astype(np.int64)
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(manifest.count(split))):
        raise RuntimeError(f"the {split} split was not evaluated once per example: {len(index)} results")
    seconds = time.perf_counter() - started
    return Evaluation(split, logits[order], labels[order], index[order], seconds, loss_function=loss)


def _as_rows(logits: np.ndarray, labels: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return all results of a batch as one array, float64 [batch, columns]: exact for every one."""
    columns = [values.reshape(len(index), -1) for values in (logits, labels, index, weight)]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def _gathered(strategy: tf.distribute.Strategy, local: list[np.ndarray], num_workers: int) -> np.ndarray:
    """Return the rows of all replicas of all processes; ``local`` has an array for each of this one's."""
    if num_workers == 1:
        return np.concatenate(local)
    remaining = iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining)))
    return gathered(strategy)(values).numpy()
