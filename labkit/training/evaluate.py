"""Evaluation of a whole split, with every example counted exactly once, and its record in the run."""

import functools
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from labkit.data.loading import load_split
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import WHOLE_IMAGE, NetworkInput
from labkit.data.pipeline import InputShare, eval_dataset
from labkit.distributed.strategies import gathered
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.directory import replacing
from labkit.run_directory.metrics import metrics_in_words
from labkit.training.console import Console, format_duration
from labkit.training.losses import SOFTMAX, Loss
from labkit.training.scores import class_metrics, confusion_counts
from labkit.training.telemetry import SilentTelemetry, Telemetry

if TYPE_CHECKING:
    from labkit.training.network import Network

__all__ = ["Evaluation", "RunEvaluator", "evaluate_split", "write_predictions"]

MOST_IMAGE_BYTES = 64 * 2**20  # of a split; larger ones are read from the data set when they are shown


@dataclass(frozen=True)
class Evaluation:
    """Logits of every example of a split, in the split's order, and the metrics computed from them.

    ``logits`` float32 [n, num_classes]; ``labels`` int32 [n], or [n, num_classes] of zeros and ones if an
    image has several; ``index`` int64 [n], the examples' numbers within the split; ``seconds`` of wall time.
    ``augmented`` is the evaluation with test-time augmentation; ``loss_function`` the training loss.
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
        """The class of the largest logit, int64 [n]; or all labels over one half, bool [n, num_classes]."""
        return self.loss_function.predictions(self.logits)

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """``loss`` without label smoothing and weight decay, ``accuracy``, and the loss's other metrics."""
        return self.loss_function.scores(self.labels, self.logits)

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats."""
        return self.metrics["loss"]

    @property
    def accuracy(self) -> float:
        return self.metrics["accuracy"]

    def confusion(self) -> np.ndarray | None:
        """Return counts, int64 [true class, predicted class]; None: see ``confusion_counts``."""
        return confusion_counts(self.labels, self.predictions, self.logits.shape[1])

    def row(self) -> dict[str, float | int | str]:
        """Return the values of a metrics row; ``tta_`` marks those with test-time augmentation."""
        augmented: dict[str, float | int | str] = {}
        if self.augmented is not None:
            augmented = {
                "tta_loss": self.augmented.loss,
                "tta_accuracy": self.augmented.accuracy,
                "tta_seconds": self.augmented.seconds,
            }
        return augmented | {
            "split": self.split,
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
    augmented_predict_step=None,
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
        augmented_predict_step: a predict step with test-time augmentation, for a second pass over the split.
        on_batch: called after each batch.
        num_workers, worker_number: if several processes evaluate together, their number, and this one's from
            0. Every process returns the evaluation of the whole split.

    Raises RuntimeError if an example wasn't evaluated exactly once, and ValueError if the loss doesn't fit
    the data set's labels.
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
                network_input=network_input,
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
    labels = rows[:, manifest.num_classes : -2].astype(np.int32).reshape(-1, *manifest.target_shape)
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
    run: RunDirectory, evaluation: Evaluation, manifest: Manifest, *, checkpoint_step: int
) -> dict[str, Any]:
    """Write ``predictions/<split>.npz`` and ``.json``, each atomically; return the JSON's content.

    The archive holds labels int32 [n], or [n, num_classes] if an image has several, probabilities float32
    [n, num_classes], index int64 [n] and, if they take at most ``MOST_IMAGE_BYTES``, images uint8 [n, height,
    width, channels]. The JSON file holds the metrics, those of ``per_class``, and the confusion matrix, which
    is null for several labels and for more than ``MAX_CONFUSION_CLASSES``.
    """
    run.predictions_path.mkdir(exist_ok=True)
    stored: dict[str, np.ndarray] = {}
    if len(evaluation.index) * math.prod(manifest.image_shape) <= MOST_IMAGE_BYTES:
        stored["images"] = load_split(manifest, evaluation.split)[0][evaluation.index]
    archive = io.BytesIO()
    # Uncompressed (30 MB), because photographs hardly compress and the dashboard loads it faster.
    np.savez(
        archive,
        **stored,  # type: ignore[arg-type]  # numpy's own flag is meant
        labels=evaluation.labels,
        probabilities=evaluation.probabilities.astype(np.float32),
        index=evaluation.index,
    )
    path = run.predictions_path / f"{evaluation.split}.npz"
    with replacing(path) as temporary:
        temporary.write_bytes(archive.getbuffer())
    confusion = evaluation.confusion()
    content: dict[str, Any] = evaluation.row() | {
        "checkpoint_step": checkpoint_step,
        "classes": list(manifest.classes),
        "per_class": per_class(evaluation, manifest.classes),
        "confusion": None if confusion is None else confusion.tolist(),
    }
    write_json_atomic(run.predictions_path / f"{evaluation.split}.json", content)
    return content


def per_class(evaluation: Evaluation, classes: tuple[str, ...]) -> list[dict[str, float | int | str | None]]:
    """Return the metrics of each class: see ``labkit.training.scores.class_metrics``."""
    return class_metrics(evaluation.labels, evaluation.predictions, classes)


class RunEvaluator:
    """Evaluates the current weights of a network."""

    def __init__(
        self,
        network: "Network",
        telemetry: Telemetry | SilentTelemetry,
        console: Console | None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """Args: ``console``: None in workers other than the chief, which print nothing."""
        self.network, self.telemetry, self.console, self._on_batch = network, telemetry, console, on_batch

    def evaluate(
        self,
        split: str,
        step: int,
        more: Callable[[dict[str, Any]], Mapping[str, float]] = lambda row: {},
    ) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate ``split`` with the weights of ``step``. Returns the evaluation and its metrics row.

        ``more``: takes the row and returns what to add to it.
        """
        network = self.network

        def on_batch() -> None:
            self.telemetry.beat(f"evaluating {split}")
            self._on_batch()

        evaluation = evaluate_split(
            network.evaluation_strategy,
            network.predict_step,
            network.manifest,
            split,
            loss=network.loss,
            network_input=network.network_input,
            global_batch_size=network.config.data.eval_batch_size,
            augmented_predict_step=network.augmented_predict_step if split == "test" else None,
            num_workers=network.devices.num_workers,
            worker_number=network.devices.worker_number,
            on_batch=on_batch,
        )
        row = evaluation.row() | {
            "step": step,
            "epoch": step / network.steps_per_epoch,
            "wall_time": time.time(),
        }
        row |= more(row)
        self.telemetry.evaluation_row(row)
        if self.console:
            self._say(self.console, evaluation, step)
        return evaluation, row

    def _say(self, console: Console, evaluation: Evaluation, step: int) -> None:
        console.line(
            f"{evaluation.split} at step {step}: {metrics_in_words(evaluation.metrics)}  "
            f"({counted(evaluation.examples, 'example')} in {format_duration(evaluation.seconds)})"
        )
        if evaluation.augmented is not None:
            views = self.network.config.run.test_time_augmentation
            console.line(
                f"{evaluation.split} with --test-time-augmentation {views}: "
                f"accuracy {evaluation.augmented.accuracy:.4f}"
            )
