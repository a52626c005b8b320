"""Checkpoints, written atomically; and the weights that ``--start-from`` names.

A checkpoint is a folder such as ``step-00000100`` with TensorFlow's files and ``state.json``. It is written
under a temporary name, flushed to the disk and renamed, so a killed process never leaves a partial checkpoint
under the final name.
"""

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.network_input import input_shape
from labkit.errors import InputError
from labkit.models.initial_weights import InitialWeights, Transfer, read_weights, weight_arrays
from labkit.models.registry import build_model, in_checkpoints
from labkit.models.weight_names import transfer_to
from labkit.models.weight_source import WeightSource, find_weight_source
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import (
    best_checkpoint,
    check_checkpoint,
    checkpoint_path,
    checkpoint_steps,
    state_path,
)
from labkit.run_directory.directory import flush
from labkit.run_directory.files import check_regular, read_json


def _is_no_unread_value(record: logging.LogRecord) -> bool:
    """Drop TensorFlow's lines about values of a checkpoint that didn't fit, after the error that says it."""
    said = record.getMessage()
    return not ("Value in checkpoint could not be found" in said or "deleted with unrestored values" in said)


def checkpoint_of_network(config: Config, model: keras.Model) -> tf.train.Checkpoint:
    """Return the part of a run's checkpoints that predictions come from, over the variables of ``model``.

    That is the moving average of the weights if the run keeps one, otherwise the weights.
    """
    held = in_checkpoints(config.model, model)
    return tf.train.Checkpoint(**{"averaged" if config.optimizer.ema_decay else "model": held})


@dataclass(frozen=True)
class CheckpointState:
    """The state of the train loop that a checkpoint stores beside the variables.

    ``best_step`` is the checkpoint that the run is judged by so far; ``best_accuracy`` (0 to 1) the best of
    all validations: see ``labkit.run_directory.metrics.Selection``; None before the first validation.
    ``callbacks``: what the user's callbacks remember, by ``Calls.states``. ``intra_threads``: of the session
    that wrote it, 0 for TensorFlow's choice; None if an older labkit wrote it.
    """

    step: int
    seed: int
    data_checksum: str
    num_replicas: int
    best_step: int | None = None
    best_accuracy: float | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)
    intra_threads: int | None = None


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run's ``checkpoints`` folder.
        keep: how many of the newest checkpoints to keep; the one chosen on validation is kept as well.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending. Raises OSError if they can't be listed."""
        return checkpoint_steps(self._folder, strict=True)

    def path(self, step: int) -> Path:
        return checkpoint_path(self._folder, step)

    def latest_state(self) -> CheckpointState | None:
        """Return the state of the newest checkpoint, or None if there is none."""
        steps = self.steps()
        return self.state(steps[-1]) if steps else None

    def state(self, step: int) -> CheckpointState:
        """Return the state saved at ``step``. Raises InputError if it can't be read."""
        try:
            check_regular(self.path(step))  # TensorFlow would follow links and wait for pipes
            state: CheckpointState = read_json(state_path(self._folder, step), CheckpointState)
            if state.step != step:
                raise ValueError(f"its state.json is not of step {step}")
            return state
        except (OSError, ValueError) as error:
            raise self._damaged(step, error) from None

    def save(self, checkpoint: tf.train.Checkpoint, state: CheckpointState) -> None:
        """Write the checkpoint of ``state.step`` and remove old checkpoints."""
        self.remove_unfinished()
        final = self.path(state.step)
        if not final.exists():
            temporary = self._folder / f".{final.name}.{os.getpid()}.tmp"
            try:
                temporary.mkdir(parents=True)
                checkpoint.write(str(temporary / "variables"))
                (temporary / "state.json").write_text(json.dumps(asdict(state), indent=2) + "\n")
                for path in temporary.iterdir():
                    flush(path)
                flush(temporary)
                os.rename(temporary, final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)  # on a full disk, the room is needed
                raise
            flush(self._folder)
        self._prune(state.best_step)

    def restore(
        self, checkpoint: tf.train.Checkpoint, step: int, *, partial: bool = False
    ) -> CheckpointState:
        """Load the variables saved at ``step``.

        Args:
            checkpoint: a checkpoint object over existing variables, made under the run's strategy.
            partial: whether the saved checkpoint may hold more variables than ``checkpoint``.

        Raises InputError if the saved checkpoint is damaged or belongs to other variables.
        """
        state = self.state(step)
        try:
            status = checkpoint.read(str(self.path(step) / "variables"))
            status.assert_existing_objects_matched()
            if partial:
                status.expect_partial()
            else:
                status.assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            tf.get_logger().addFilter(_is_no_unread_value)
            if not isinstance(error, tf.errors.UnavailableError) and self._is_whole(step):
                raise self._misfit(step, error) from error
            raise self._damaged(step, error) from error  # perhaps it is only a server that was lost meanwhile
        return state

    def remove_unfinished(self) -> None:
        """Remove temporary files of killed processes. Only the process that writes the run may call this."""
        for path in self._folder.glob(".step-*.tmp"):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)

    def step_of(self, checkpoint: str) -> int:
        """Return the step for ``best`` (on validation; else the newest), ``last`` or a number.

        Raises InputError if it has no checkpoint.
        """
        check_checkpoint(self._folder, checkpoint)
        if checkpoint == "best":
            return best_checkpoint(self._folder) or 0
        return self.steps()[-1] if checkpoint == "last" else int(checkpoint)

    def _prune(self, best_step: int | None) -> None:
        steps = self.steps()
        for step in steps[: -self._keep]:
            if step != best_step:
                self._remove(step)

    def _remove(self, step: int) -> None:
        # Renamed first, so that no partial checkpoint is seen during the removal or after a kill.
        doomed = self._folder / f".{self.path(step).name}.{os.getpid()}.tmp"
        os.rename(self.path(step), doomed)
        shutil.rmtree(doomed)

    def _is_whole(self, step: int) -> bool:
        """Return whether every tensor of a checkpoint can be read."""
        try:
            reader = tf.train.load_checkpoint(str(self.path(step) / "variables"))
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, IndexError, RuntimeError):
            return False
        return True

    def _misfit(self, step: int, error: Any) -> InputError:
        """Return the error for a checkpoint that is whole, but of another network."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:160] if lines else type(error).__name__
        return InputError(
            f"checkpoint {self.path(step)} is whole, but doesn't fit the network of "
            f"{self._folder.parent / 'config.json'} ({reason}); keep both: restore the config.json that it "
            "was trained with, take the commit of labkit in environment.json if its code has changed, "
            "or train the other network in another --job-dir"
        )

    def _damaged(self, step: int, error: Any) -> InputError:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:160]
        return InputError(
            f"checkpoint {self.path(step)} can't be restored ({reason}); remove this folder to use the "
            "one before it"
        )


# ---- the weights that a run starts from


def prepare_transfer(config: Config, manifest: Manifest, model: keras.Model) -> Transfer | None:
    """Read the weights that ``--start-from`` names and match them with ``model``; None without the flag.

    Args:
        config: of the run that starts from them.
        manifest: of the data to be trained on. Its image size is used for a source run that did not record
            one.
        model: of the run.

    Raises InputError if the run, its checkpoint or the file can't be read or downloaded, or if no kernel
    among them fits.
    """
    if config.transfer.start_from is None:
        return None
    source = find_weight_source(config.transfer.start_from, config.model)
    if source.kind == "run" and source.path is not None:
        weights = _weights_of_run(source, RunDirectory(source.path), manifest)
    else:
        weights = read_weights(source, config.model, input_shape(manifest, config.data))
    return transfer_to(model, weights, config, manifest.classes)


def _weights_of_run(source: WeightSource, run: RunDirectory, manifest: Manifest) -> InitialWeights:
    config = recorded_config(run)
    store = CheckpointStore(run.checkpoints_path)
    step = store.step_of("best")
    recorded = run.read_environment().get("data")
    data: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    classes = data.get("classes")
    if not isinstance(classes, list) or not classes:
        raise InputError(
            f"--start-from {run.path}: its environment.json is missing, damaged or names no classes; restore "
            "the file from a copy"
        )
    if config.model.precision != "float64":  # mixed precision also keeps its weights in float32
        config = config.replace({"precision": "float32"})
    height, width, channels = data.get("image_shape", manifest.image_shape)
    side = config.data.crop_size
    shape = (side or height, side or width, channels)
    model = build_model(config.model, num_classes=len(classes), image_shape=shape)
    store.restore(checkpoint_of_network(config, model), step, partial=True)
    return InitialWeights(source, weight_arrays(model), step, tuple(classes))
