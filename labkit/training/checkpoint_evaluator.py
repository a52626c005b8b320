"""The checkpoints of a run, evaluated on one device of this process."""

import time
from collections.abc import Callable
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.distributed.devices import num_gpus_found
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.training.admission import recorded_config
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.evaluate import Evaluation, evaluate_split
from labkit.training.session import make_session, prepare_devices
from labkit.training.telemetry import EventWriter

__all__ = ["CheckpointEvaluator", "check_same_data"]


class CheckpointEvaluator:
    """A model that is built once and takes the weights of one checkpoint after the other.

    Args:
        run: the run.
        config: as recorded in the run; batch size and threads of the evaluation may differ.
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        num_gpus: 0: the CPU; 1: a GPU where there is one. One device is enough, whatever the run has.
        on_batch: called after each batch.

    Raises InputError where the device can't run the configuration.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        manifest: Manifest,
        split: str,
        *,
        num_gpus: int,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        here = {"simulate_missing_gpus": False, "variable_strategy": "CPU", "data_format": "auto"}
        self._config = config.replace(here | {"num_gpus": min(num_gpus, num_gpus_found())})
        self._run, self._manifest, self._split, self._on_batch = run, manifest, split, on_batch
        self._store = CheckpointStore(run.checkpoints_path)
        self._session = make_session(self._config, manifest, prepare_devices(self._config))
        self._events: EventWriter | None = None

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        return self._store.steps()

    def load(self, step: int) -> None:
        """Take the weights of the checkpoint of ``step``. Raises InputError where it is gone or damaged."""
        self._read_at = time.time()
        self._state = self._store.restore(self._session.model_checkpoint(), step, partial=True)

    def evaluate(self) -> Evaluation:
        """Run the weights over the split.

        Raises InputError where they, or the run by now, are of other data or another configuration.
        """
        check_same_data(self._run, self._state, self._manifest)
        differences = recorded_config(self._run).differences(self._config)
        if differences:
            raise InputError(
                f"{self._run.path} was started over with another configuration: {'; '.join(differences)}; "
                "give the command again"
            )
        return evaluate_split(
            self._session.strategy,
            self._session.predict_step,
            self._manifest,
            self._split,
            loss=self._session.loss,
            global_batch_size=self._config.data.eval_batch_size,
            augmented_predict_step=self._session.augmented_predict_step,
            on_batch=self._on_batch,
        )

    def row(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the metrics row; its ``wall_time`` is when the checkpoint was read."""
        step = self._state.step
        epoch = step * self._config.data.train_batch_size / self._manifest.count("train")
        return evaluation.metrics() | {"step": step, "epoch": epoch, "wall_time": self._read_at}

    def evaluate_row(self) -> dict[str, Any]:
        """Return the metrics row of ``evaluate``, and raise as it does."""
        return self.row(self.evaluate())

    def write_event(self, row: dict[str, Any]) -> None:
        """Write a row for TensorBoard, in a folder of its own: TensorBoard follows one file of a folder."""
        if self._events is None:
            self._events = EventWriter(self._run.events_path / "evaluations", row["step"])
        self._events.scalars(row)

    def close(self) -> None:
        """Flush the events."""
        if self._events is not None:
            self._events.close()


def check_same_data(run: RunDirectory, state: CheckpointState, manifest: Manifest) -> None:
    """Raise InputError where the checkpoint was trained on other data than ``manifest`` describes."""
    if state.data_checksum != manifest.checksum:
        raise InputError(
            f"{run.path} was trained on other data than {manifest.directory} holds now "
            f"(checksum {state.data_checksum[:12]} there, {manifest.checksum[:12]} here); "
            "name its data set with --data-dir"
        )
