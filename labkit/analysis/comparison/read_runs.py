"""One training of a comparison, read from its run directory and from what was measured around it.

Needs no TensorFlow.
"""

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import DataConfig, fields_by_name
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader, selection_metric

__all__ = [
    "NOT_STARTED",
    "WARM_UP_STEPS",
    "Request",
    "RunMetrics",
    "measurements_path",
    "read_measurements",
    "read_request",
    "read_run",
    "request_path",
    "run_directory",
]

# The first step of a session compiles, the next ones fill allocators and prefetching.
WARM_UP_STEPS = 5
NOT_STARTED = "not started"
MEASURED = ("inference_images_per_second", "peak_memory_bytes", "parameters", "multiply_adds")


# ---- the directory -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """What a comparison was asked for: ``comparison.json``.

    ``seeds``: how many, from 0. ``budget``: the configuration's fields that all trainings share, by name.
    ``data_checksum``: of the data set. ``data_dir``: where that was asked to be; None: in the default place.
    """

    models: tuple[str, ...]
    seeds: int
    budget: Mapping[str, Any]
    data_checksum: str
    data_dir: str | None = None

    def beside(self, earlier: "Request | None") -> "Request":
        """Return this request with the models and seeds that an earlier one asked for in the same place."""
        if earlier is None:
            return self
        more = [name for name in earlier.models if name not in self.models]
        models = (*self.models, *more)
        if more:  # those that are known keep their places
            models = (*earlier.models, *(name for name in self.models if name not in earlier.models))
        return dataclasses.replace(self, models=models, seeds=max(self.seeds, earlier.seeds))


def request_path(folder: Path) -> Path:
    return folder / "comparison.json"


def run_directory(folder: Path, model: str, seed: int) -> RunDirectory:
    """Return where a comparison in ``folder`` trains ``model`` with ``seed``."""
    return RunDirectory(folder / f"{model}-seed{seed}")


def measurements_path(run: RunDirectory) -> Path:
    """Return the file of what was measured around a run, beside its directory."""
    return run.path.with_name(f"{run.name}.json")


def read_request(folder: Path) -> Request | None:
    """Return what the comparison in ``folder`` was asked for, None where there is none.

    Raises InputError where the file can't be read.
    """
    path = request_path(folder)
    try:
        value = json.loads(path.read_text())
        models, budget = tuple(value["models"]), dict(value["budget"])
        if not all(isinstance(name, str) for name in models) or not budget.keys() <= fields_by_name().keys():
            raise ValueError("models or budget are of another version of labkit")
        data_dir = value.get("data_dir")
        if not isinstance(data_dir, str | None):
            raise ValueError("data_dir is no text")
        return Request(models, int(value["seeds"]), budget, str(value["data_checksum"]), data_dir)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        raise InputError(
            f"{path} can't be read ({reason}); remove it to let the same command write it anew"
        ) from None


def read_measurements(run: RunDirectory) -> dict[str, Any]:
    """Return what was measured around a run; empty where nothing readable is there."""
    try:
        value = json.loads(measurements_path(run).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- a training ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunMetrics:
    """One training of a comparison; None is what isn't known.

    ``state``: as ``Status.liveness`` gives it, or ``not started``. ``test_accuracy`` (0 to 1): of the weights
    that were the best on validation; ``validation_accuracy``: of the same; ``tta_accuracy``: on the test set,
    with test-time augmentation. ``training_images_per_second``: the batch over the median step, without the
    first ``WARM_UP_STEPS`` of each session and those that compile. ``training_seconds``: of all steps that
    count, where one that compiles counts as a median one: the first of a session, with images of another
    size, or behind a thaw; without validation and checkpoints.
    ``inference_images_per_second``: measured in a process of its own, on one device.
    ``peak_memory_bytes``: the largest resident set of the training process.
    ``multiply_adds``: of one image's forward pass. ``device``: where it was trained.
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
    """Read one training of a comparison in ``folder``, all of whose trainings share ``budget``."""
    run = run_directory(folder, model, seed)
    status = run.read_status()
    if status is None:
        return RunMetrics(model, seed)
    reader = MetricsReader(run.metrics_path)
    reader.poll()
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
    """Return the accuracies of the weights that the run chose."""
    tests, validations = reader.split("test"), reader.split("validation")
    # Without a test the first of the best, as the loop chooses.
    chosen = tests[-1] if tests else max(validations, key=selection_metric, default={})
    validated = [row["accuracy"] for row in validations if row["step"] == chosen.get("step")]
    return {
        "test_accuracy": tests[-1]["accuracy"] if tests else None,
        "tta_accuracy": tests[-1].get("tta_accuracy") if tests else None,
        "validation_accuracy": validated[0] if validated else None,
    }


def _pace(reader: MetricsReader, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the speed of a run's median step and the seconds of all."""
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
    """Return the steps behind which another step is compiled: for images of another size, or for a thaw.

    How many stages there are to thaw, only the network knows: each time at which one could is among them.
    """
    total_steps, thaws_every = int(budget["train_steps"]), int(budget.get("unfreeze_every_steps", 0))
    data = DataConfig(progressive_resizing=budget.get("progressive_resizing"))
    thaws = range(thaws_every, total_steps, thaws_every) if thaws_every else ()
    return [*data.resizing_steps(total_steps), *thaws]
