"""Evaluation of a run's checkpoints on one device of this process."""

import time
from collections.abc import Callable
from typing import Any

from labkit.config.recorded import recorded_config
from labkit.data.manifest import check_same_data
from labkit.errors import InputError
from labkit.run_directory.metrics import VIEWS, append_evaluation, evaluation_key
from labkit.run_directory.reader import read_metrics
from labkit.tensorboard.events import EventWriter
from labkit.training.checkpoints import CheckpointStore
from labkit.training.evaluate import Evaluation, write_predictions
from labkit.training.network import Network
from labkit.training.plan import EvaluationPlan, on_one_device


class CheckpointEvaluator:
    """Evaluates checkpoints of a run with a model that is built once.

    Args:
        plan: from ``plan_evaluation``; batch size and threads may differ from the run's.
        split: ``train``, ``validation`` or ``test``.
        num_gpus: 0 uses the CPU; 1 uses a GPU if there is one. The run may have used more devices.
        on_batch: called after each batch.

    Raises InputError if the device can't run the configuration.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        split: str,
        *,
        num_gpus: int,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._manifest = plan.run, plan.manifest
        self._config, devices, data_format = on_one_device(plan.config, num_gpus=num_gpus)
        self._split, self._on_batch = split, on_batch
        self._store = CheckpointStore(self._run.checkpoints_path)
        self._network = Network(self._config, self._manifest, devices, data_format)
        self._events: EventWriter | None = None

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        return self._store.steps()

    def load(self, step: int) -> None:
        """Load the weights of the checkpoint of ``step``. Raises InputError if it is missing or damaged."""
        self._read_at = time.time()
        self._state = self._store.restore(self._network.model_checkpoint(), step, partial=True)

    def evaluate(self) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate the loaded weights on the split.

        Returns the evaluation and its metrics row, whose ``wall_time`` is when the checkpoint was read.
        Raises InputError if the checkpoint was trained on other data, or if the run has since been started
        over with another configuration.
        """
        step = self._state.step
        check_same_data(self._manifest, self._state.data_checksum, self._run.path)
        differences = recorded_config(self._run).differences(self._config)
        if differences:
            raise InputError(
                f"{self._run.path} was started over with another configuration: {'; '.join(differences)}; "
                "give the command again"
            )
        evaluation = self._network.evaluate(self._split, on_batch=self._on_batch)
        epoch = step * self._config.data.images_per_step / self._manifest.count("train")
        return evaluation, evaluation.row() | {"step": step, "epoch": epoch, "wall_time": self._read_at}

    def write_event(self, row: dict[str, Any]) -> None:
        """Write a row for TensorBoard, in its own folder: TensorBoard follows only one file per folder."""
        if self._events is None:
            self._events = EventWriter(self._run.events_path / "evaluations", row["step"])
        self._events.scalars(row)

    def close(self) -> None:
        """Flush and close the events file."""
        if self._events is not None:
            self._events.close()


def evaluate_checkpoint(plan: EvaluationPlan, split: str, checkpoint: str) -> dict[str, Any]:
    """Evaluate one checkpoint; see ``labkit.training.train.evaluate``."""
    run, manifest = plan.run, plan.manifest
    store = CheckpointStore(run.checkpoints_path)
    step = store.step_of(checkpoint)
    check_same_data(manifest, store.state(step).data_checksum, run.path)
    evaluator = CheckpointEvaluator(plan, split, num_gpus=1)
    evaluator.load(step)
    evaluation, row = evaluator.evaluate()
    metrics = write_predictions(run, evaluation, manifest, checkpoint_step=step)
    reader = read_metrics(run)
    views = plan.config.run.test_time_augmentation
    if evaluation.augmented is not None and views != recorded_config(run).run.test_time_augmentation:
        row[VIEWS] = views
    if split == "train" or evaluation_key(row) not in map(evaluation_key, reader.evaluations):
        append_evaluation(run.metrics_path, row, reader.resume_points)
    return metrics
