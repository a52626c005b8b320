"""The batch of a step of a run, for readers without TensorFlow, and the checkpoint to ask about it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.config.config import recorded_config
from labkit.data.batch import StepBatch, batch_from_memory
from labkit.data.inputs import choose_input_path
from labkit.data.of_run import data_set_of
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import read_lineage

MAX_BYTES = 64 * 2**20  # of a batch's pixels; standardized, they take four times as much


class NeedsReplay(InputError):
    """The batch exists, but only ``labkit replay --batch-only`` can make it."""


@dataclass(frozen=True)
class RunBatch:
    """The batch of a step, ``seen`` as the network saw it. ``pixels``: uint8, before progressive resizing."""

    seen: StepBatch
    pixels: NDArray[np.uint8]
    multi_label: bool


def batch_without_tensorflow(run: RunDirectory, step: int) -> RunBatch:
    """Return the global batch of a step that the run has made or will make. Needs no checkpoint.

    Raises ``NeedsReplay`` for a run that streamed its data and for a very large batch, and InputError for a
    step outside of the run or made with other settings, and for a data set that is gone or has changed.
    """
    config = recorded_config(run)
    last = config.run.train_steps
    if not 1 <= step <= last:
        raise InputError(f"There is no step {step:,}: this run's steps are 1 to {last:,}.")
    check_settings_of_step(run, step, of_data=True)
    manifest = data_set_of(run)
    if choose_input_path(manifest, config.data.input_path) != "memory":
        raise NeedsReplay(
            "This run streamed its data, so the order of the images comes from TensorFlow's shuffle buffer, "
            "which this page doesn't have. This command finds the batch:"
        )
    if config.data.augment is not None and "tensorflow" not in sys.modules:
        raise NeedsReplay(
            f"This run changes its images by {config.data.augment}, code of its own, which this page doesn't "
            "run. This command makes the batch:"
        )
    size = config.data.images_per_step
    if size * int(np.prod(manifest.image_shape)) > MAX_BYTES:
        raise NeedsReplay(f"A batch of {size:,} images is too large for this page. This command writes it:")
    side = config.data.image_size_at(step - 1, last)
    full = batch_from_memory(manifest, config.data, seed=config.run.seed, step=step)
    if side is None:
        return RunBatch(full, full.images, manifest.multi_label)
    seen = batch_from_memory(manifest, config.data, seed=config.run.seed, step=step, image_size=side)
    return RunBatch(seen, full.images, manifest.multi_label)


def check_settings_of_step(run: RunDirectory, step: int, *, of_data: bool = False) -> None:
    """Raise InputError for a step before a fork that was made with other settings than ``run`` has.

    ``of_data``: only those that change a batch count.
    """
    lineage, seen = read_lineage(run), {run.path}
    of_batches = {"train_steps", *(field.name for field in fields(DataConfig))} - {"eval_batch_size"}
    while lineage is not None and step <= lineage.step:
        if lineage.changes.keys() & of_batches if of_data else lineage.changes:
            raise InputError(
                f"step {step} of {run.path} was made with other settings, by the run that it was forked "
                f"from: {lineage.parent}"
            )
        parent = RunDirectory(lineage.parent)
        lineage = None if parent.path in seen else read_lineage(parent)
        seen.add(parent.path)


def batch_note(run: RunDirectory, step: int) -> str:
    """Return a line on how the batch of a step may differ from that of its row; empty if it doesn't."""
    if not is_asynchronous(run.read_environment()):
        return ""
    return (
        "asynchronous workers made this run; its rows are numbered in the order in which the steps ended; "
        f"row {step} of the metrics may be that of another batch"
    )


def is_asynchronous(environment: Mapping[str, Any]) -> bool:
    """Return whether workers updated the weights without waiting for each other."""
    return "asynchronous worker" in str(environment.get("description", ""))


def checkpoint_for(kept: Sequence[int], step: int) -> int | None:
    """Return which of the kept checkpoints to ask about the batch of a step; None if there are none.

    That is the newest before the step, whose weights haven't been trained on this batch, otherwise the first
    one at the step or after it.
    """
    before = [found for found in kept if found < step]
    return max(before) if before else min(kept, default=None)
