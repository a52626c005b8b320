"""Evaluation of a split, with every example counted exactly once: its step, its metrics, its record."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest
from labkit.data.network_input import WHOLE_IMAGE, NetworkInput
from labkit.data.pipeline import InputShare, eval_dataset
from labkit.data.shards import load_split
from labkit.distributed.synchronous import gathered
from labkit.models.variants import folded_normalization
from labkit.run_directory import RunDirectory
from labkit.training.losses import SOFTMAX, Loss
from labkit.training.recorded_predictions import record_predictions
from labkit.training.scores import confusion_counts

MOST_IMAGE_BYTES = 64 * 2**20  # of a split; larger ones are read from the data set when they are shown


@dataclass(frozen=True)
class Evaluation:
    """Logits of every example of a split, in the split's order, and the metrics computed from them.

    ``logits`` float32 [n, num_classes]; ``labels`` int32 [n], [n, num_classes] of zeros and ones if an
    image has several, or float32 [n, numbers]; ``index`` int64 [n], the examples' numbers within the split;
    ``seconds`` of wall time. ``augmented`` is the evaluation with test-time augmentation; ``loss_function``
    the training loss.
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
        """Softmax or sigmoid of the logits, float64 [n, num_classes]; or the numbers, in their unit."""
        return self.loss_function.probabilities(self.logits)

    @property
    def predictions(self) -> np.ndarray:
        """The class of the largest logit, int64 [n]; all labels over one half, bool [n, num_classes]; or
        the numbers."""
        return self.loss_function.predictions(self.logits)

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """``loss`` without label smoothing and weight decay, the result, and the loss's other metrics."""
        return self.loss_function.scores(self.labels, self.logits)

    @property
    def loss(self) -> float:
        """The mean loss; of cross-entropy in nats."""
        return self.metrics["loss"]

    @property
    def result(self) -> str:
        """The name of the metric that counts: ``accuracy``, or ``mean_absolute_error`` of numbers."""
        return next(iter(self.loss_function.step_metrics))

    def confusion(self) -> np.ndarray | None:
        """Return counts, int64 [true class, predicted class]; None: see ``confusion_counts``."""
        return confusion_counts(self.labels, self.predictions, self.logits.shape[1])

    def row(self) -> dict[str, float | int | str]:
        """Return the values of a metrics row; ``tta_`` marks those with test-time augmentation."""
        augmented: dict[str, float | int | str] = {}
        if self.augmented is not None:
            augmented = {
                "tta_loss": self.augmented.loss,
                f"tta_{self.result}": self.augmented.metrics[self.result],
                "tta_seconds": self.augmented.seconds,
            }
        chosen_by = self.loss_function.best_by if self.split == "validation" else None
        return augmented | {
            "split": self.split,
            **({"best_by": chosen_by} if chosen_by else {}),
            **self.metrics,
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
    network_input: NetworkInput = WHOLE_IMAGE,
    global_batch_size: int,
    on_batch=lambda: None,
    num_workers: int = 1,
    worker_number: int = 0,
) -> Evaluation:
    """Evaluate the model on a split.

    Args:
        strategy: the strategy whose replicas share each batch.
        predict_step: from ``make_predict_step``.
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        loss: the training loss of the model.
        network_input: what the model takes of an image.
        global_batch_size: examples per step. Any size works: the last batch is padded, and the padding
            ignored.
        on_batch: called after each batch.
        num_workers, worker_number: if several processes evaluate together, their number, and this one's from
            0. Every process returns the evaluation of the whole split.

    Raises RuntimeError if an example wasn't evaluated exactly once, and ValueError if the loss doesn't fit
    the data set's labels.
    """
    if loss.targets != manifest.targets:
        raise ValueError(f"{loss.name!r} isn't for {manifest.dataset}, whose labels are {manifest.targets}")
    started = time.perf_counter()
    replicas = strategy.num_replicas_in_sync
    local = replicas // num_workers
    share = InputShare(num_replicas=replicas, first_replica=worker_number * local, num_local_replicas=local)
    batches = strategy.distribute_datasets_from_function(
        lambda _: eval_dataset(
            manifest, split, global_batch_size=global_batch_size, network_input=network_input, share=share
        )
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
    labels = rows[:, manifest.num_classes : -2].astype(manifest.target_dtype)
    labels = labels.reshape(-1, *manifest.target_shape)
    index = rows[:, -2].astype(np.int64)
    order = np.argsort(index, kind="stable")
    if not np.array_equal(index[order], np.arange(manifest.count(split))):
        raise RuntimeError(f"the {split} split was not evaluated once per example: {len(index)} results")
    seconds = time.perf_counter() - started
    return Evaluation(split, logits[order], labels[order], index[order], seconds, loss_function=loss)


def _as_rows(logits: np.ndarray, labels: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return all results of a batch as one array, float64 [batch, columns], without rounding."""
    columns = [values.reshape(len(index), -1) for values in (logits, labels, index, weight)]
    return np.concatenate(columns, axis=1, dtype=np.float64)


def _gathered(strategy: tf.distribute.Strategy, local: list[np.ndarray], num_workers: int) -> np.ndarray:
    """Return the rows of all replicas of all processes; ``local`` has one array per local replica."""
    if num_workers == 1:
        return np.concatenate(local)
    remaining = iter(local)
    values = strategy.experimental_distribute_values_from_function(lambda _: tf.constant(next(remaining)))
    return gathered(strategy)(values).numpy()


def write_predictions(
    run: RunDirectory, evaluation: Evaluation, manifest: Manifest, *, checkpoint_step: int, name: str = ""
) -> dict[str, Any]:
    """Record predictions of a split, by a name or its own, with images of at most ``MOST_IMAGE_BYTES``."""
    stored: dict[str, np.ndarray] = {}
    if len(evaluation.index) * math.prod(manifest.image_shape) <= MOST_IMAGE_BYTES:
        stored["images"] = load_split(manifest, evaluation.split)[0][evaluation.index]
    arrays = stored | {
        "labels": evaluation.labels,
        "probabilities": evaluation.probabilities.astype(np.float32),
        "index": evaluation.index,
    }
    row = evaluation.row() | {"checkpoint_step": checkpoint_step}
    return record_predictions(
        run, name or evaluation.split, arrays, row, manifest.classes, evaluation.predictions
    )


# ---- the step of an evaluation

SMALLEST_HALF = 64  # images of half a batch that is predicted by halves: parts of 16 and 32 were slower


def make_predict_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    test_time_augmentation: str = "none",
    *,
    has_remote_weights: bool = False,
) -> Callable[[Any], Any]:
    """Return ``predict_step(images)`` -> logits float32 [batch, num_classes], per replica.

    Batch normalization is folded into the convolutions (``models.folding``). ``test_time_augmentation``
    averages the logits over several augmented copies of each image (``averaged_over_views``).
    With ``has_remote_weights``, weights are read once for each batch.
    """
    on_one_cpu = strategy.num_replicas_in_sync == 1 and not tf.config.list_logical_devices("GPU")
    one_at_a_time = tf.config.threading.get_inter_op_parallelism_threads() == 1
    # Remote weights would be read once for each half.
    by_halves = on_one_cpu and not one_at_a_time and not has_remote_weights
    network = functools.partial(_by_halves if by_halves else _whole, model)

    def predict(images):
        with folded_normalization(model):
            return averaged_over_views(network, images, test_time_augmentation)

    @tf.function(reduce_retracing=True, autograph=False)
    def predict_step(images):
        return strategy.run(predict, args=(images,))

    return predict_step


def _whole(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    return model(images, training=False)


def _by_halves(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    """Return the model's logits, where the size allows computed for two halves of the batch at a time.

    On two cores this is faster (docs/speed.md, "Inference"); the logits of ResNet-20 were bit-equal.
    """
    size = images.shape[0]
    one_thread = tf.config.threading.get_intra_op_parallelism_threads() == 1  # else a core would be idle
    if size is None or size % 2 or (size < 2 * SMALLEST_HALF and not one_thread):
        return _whole(model, images)
    halves = tf.reshape(images, [2, size // 2, *images.shape[1:]])
    like = tf.as_dtype(model.outputs[0].dtype)
    logits = tf.map_fn(
        lambda half: _whole(model, half), halves, parallel_iterations=2, fn_output_signature=like
    )
    return tf.reshape(logits, [size, -1])


def averaged_over_views(model: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor, views: str) -> tf.Tensor:
    """Return the mean logits over the views of each image, float32 [batch, num_classes].

    Args:
        model: maps images to logits.
        images: float32 [batch, height, width, channels].
        views: ``none``, ``mirror`` or ``mirror_and_shift``. ``mirror`` averages the image and its mirror
            image. ``mirror_and_shift`` averages six views: the image shifted by one pixel up and left, the
            same down and right, with reflected borders, and the unshifted image with twice their weight, each
            also mirrored (Jordan, 2024, arXiv:2404.00498, section 3.5, "multi-crop").
    """
    if views == "none":
        return model(images)

    def with_mirror(view: tf.Tensor) -> tf.Tensor:
        return (model(view) + model(tf.reverse(view, axis=[2]))) / 2

    logits = with_mirror(images)
    if views == "mirror_and_shift":
        height, width = images.shape[1], images.shape[2]
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
        shifted = [padded[:, :height, :width], padded[:, 2:, 2:]]
        logits = (logits + sum(map(with_mirror, shifted)) / 2) / 2
    return logits
