"""Read one training of a comparison from its run directory and its measurements.

Doesn't import TensorFlow.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import DataConfig
from labkit.experiments.comparison.files import read_measurements, run_directory
from labkit.run_directory.metrics import chosen_step, own_test
from labkit.run_directory.reader import MetricsReader, read_metrics

__all__ = ["NOT_STARTED", "WARM_UP_STEPS", "RunMetrics", "read_run"]

WARM_UP_STEPS = 5  # the first step of a session compiles; during the next ones, memory and prefetching settle
NOT_STARTED = "not started"
MEASURED = ("inference_images_per_second", "peak_memory_bytes", "parameters", "multiply_adds")


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of one training of a comparison. None means unknown.

    ``state``: of ``Status.liveness``, or ``not started``. ``test_accuracy`` (0 to 1): of the weights with the
    best validation. ``validation_accuracy``: of the same weights. ``tta_accuracy``: on the test set, with
    test-time augmentation. ``training_images_per_second``: batch size over the seconds of the median step,
    without the first ``WARM_UP_STEPS`` of each session and without steps that compile.
    ``training_seconds``: sum over all steps, without validation and checkpoints. A step that compiles (the
    first of a session, with a new image size, or after a thaw) is counted with the median step's seconds.
    ``inference_images_per_second``: measured in a separate process on one device.
    ``peak_memory_bytes``: largest resident set of the training process. ``multiply_adds``: of one image's
    forward pass. ``device``: that it was trained on.
    """

    model: str
    seed: int
    state: str = NOT_STARTED
    step: int = 0
    message: str = ""
    test_accuracy: float | None = None
    validation_accuracy: float | None = None
    tta_accuracy: float | None = None
    training_images_per_second: float | None = None
    inference_images_per_second: float | None = None
    training_seconds: float | None = None
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    multiply_adds: int | None = None
    device: str = ""

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def name(self) -> str:
        return f"{self.model}, seed {self.seed}"


def read_run(folder: Path, model: str, seed: int, budget: Mapping[str, Any]) -> RunMetrics:
    """Read the training of ``model`` with ``seed`` from the folder of a comparison with this budget."""
    run = run_directory(folder, model, seed)
    status = run.read_status()
    if status is None:
        return RunMetrics(model, seed)
    reader = read_metrics(run)
    measured = read_measurements(run)
    return RunMetrics(
        model,
        seed,
        state=status.liveness(),
        step=status.step,
        message=status.message,
        device=str(run.read_environment().get("description", "")),
        **_accuracies(reader),
        **_pace(reader, budget),
        **{name: measured.get(name) for name in MEASURED},
    )


def _accuracies(reader: MetricsReader) -> dict[str, Any]:
    """Return the accuracies of the weights that the run selected."""
    validations = reader.split("validation")
    test = own_test(reader.split("test"), None, ()) or {}
    # Without a test, the validation that the training loop would choose.
    chosen = test["step"] if test else chosen_step(validations)
    validated = [row.get("accuracy") for row in validations if row["step"] == chosen]
    return {
        "test_accuracy": test.get("accuracy"),
        "tta_accuracy": test.get("tta_accuracy"),
        "validation_accuracy": validated[0] if validated else None,
    }


def _pace(reader: MetricsReader, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the speed of the median step and the seconds of all steps."""
    batch_size = int(budget["train_batch_size"])
    seconds = {row["step"]: float(row["seconds_per_step"]) for row in reader.split("train")}
    starts = [0, *(resume_point.step for resume_point in reader.resume_points)]
    warming = {start + step for start in starts for step in range(1, WARM_UP_STEPS + 1)}
    compiling = {start + 1 for start in [*starts, *_changes(budget)]}
    warm = [value for step, value in seconds.items() if step not in warming | compiling]
    if not warm:
        return {"training_images_per_second": None, "training_seconds": sum(seconds.values()) or None}
    median = statistics.median(warm)
    total = sum(median if step in compiling else value for step, value in seconds.items())
    return {"training_images_per_second": batch_size / median, "training_seconds": total}


def _changes(budget: Mapping[str, Any]) -> list[int]:
    """Return the steps after which the step is compiled again: for a new image size or other frozen layers.

    Only the network knows how many stages can thaw, so every step at which one might thaw is included.
    """
    total_steps, thaws_every = int(budget["train_steps"]), int(budget.get("unfreeze_every_steps", 0))
    data = DataConfig(progressive_resizing=budget.get("progressive_resizing"))
    thaws = range(thaws_every, total_steps, thaws_every) if thaws_every else ()
    return [*data.resizing_steps(total_steps), *thaws]
