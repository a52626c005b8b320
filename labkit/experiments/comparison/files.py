"""The files of a comparison: its request with its budget, the run directories, the measurements of each run.

Doesn't import TensorFlow.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config, fields_by_name
from labkit.config.architectures import NAMED_FIELDS
from labkit.config.data_sets import fold_name
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.files import read_json, read_object

RESULTS = "results"  # .csv, .json, .md and .png
NEEDED = ("dataset", "train_steps", "train_batch_size", "eval_batch_size")  # of a budget, to show it


@dataclass(frozen=True)
class Request:
    """What a comparison was asked to do, as recorded in ``comparison.json``.

    ``models``: their names. ``seeds``: how many, starting from 0. ``budget``: the fields of the configuration
    that all trainings share, by name. ``data_checksum``: of the data set. ``data_dir``: its ``--data-dir``;
    None: the default one. ``folds``: into how many its images are parted, on each of which each model is
    trained with each seed; 0: they aren't.
    """

    models: tuple[str, ...]
    seeds: int
    budget: Mapping[str, Any]
    data_checksum: str
    data_dir: str | None = None
    folds: int = 0

    @property
    def trained(self) -> list[tuple[int, str]]:
        """The seed and the fold, such as ``2/5``, of each training of a model, in order; "" without folds."""
        folds = [f"{number}/{self.folds}" for number in range(1, self.folds + 1)] or [""]
        return [(seed, fold) for seed in range(self.seeds) for fold in folds]

    def merged_with(self, earlier: "Request | None") -> "Request":
        """Return this request with the models and seeds of an earlier one for the same directory added."""
        if earlier is None:
            return self
        models = self.models
        if not set(earlier.models) <= set(models):  # keep the order of the models that are there
            models = tuple(dict.fromkeys((*earlier.models, *models)))
        return dataclasses.replace(self, models=models, seeds=max(self.seeds, earlier.seeds))


def request_path(folder: Path) -> Path:
    """Return the path of ``comparison.json`` in ``folder``."""
    return folder / "comparison.json"


def run_directory(folder: Path, model: str, seed: int, fold: str = "") -> RunDirectory:
    """Return the run directory of ``model`` with ``seed`` on ``fold`` in a comparison's folder."""
    return RunDirectory(folder / f"{fold_name(model, fold) if fold else model}-seed{seed}")


def measurements_path(run: RunDirectory) -> Path:
    """Return the file of a run's measurements, which lies beside its directory."""
    return run.path.with_name(f"{run.name}.json")


def read_request(folder: Path) -> Request | None:
    """Return the recorded request of the comparison in ``folder``; None if there is none.

    Raises InputError if the file can't be read.
    """
    path = request_path(folder)
    try:
        request: Request = read_json(path, Request)
        if not request.budget.keys() <= fields_by_name().keys():
            raise ValueError("its budget comes from another version of labkit")
        if missing := [name for name in NEEDED if name not in request.budget]:
            raise ValueError(f"the budget has no {missing[0]}")
        return request
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:160]
        raise InputError(
            f"{path} can't be read ({reason}); remove it and run the same command again"
        ) from None


def read_measurements(run: RunDirectory) -> dict[str, Any]:
    """Return the measurements of a run; empty if there are no readable ones."""
    return read_object(measurements_path(run))


def update_measurements(run: RunDirectory, values: Mapping[str, Any]) -> None:
    """Add ``values`` to the measurements of a run. Existing values of the same names are replaced."""
    write_json_atomic(measurements_path(run), {**read_measurements(run), **values})


def add_peak_memory(run: RunDirectory, peak_memory_bytes: int | None) -> None:
    """Record the peak memory of a session if it is the largest so far; None means unknown."""
    before = read_measurements(run).get("peak_memory_bytes") or 0
    if peak_memory_bytes is not None and peak_memory_bytes > before:
        update_measurements(run, {"peak_memory_bytes": peak_memory_bytes})


# ---- the budget: the fields of the configuration that all trainings of a comparison share

# Fields that a comparison sets for each training, or that none of its networks has; the others are those of a
# model's name.
OF_EACH = ("seed", "job_dir", "model_arguments")


def shared_fields() -> tuple[str, ...]:
    """Return the names of the fields that a comparison accepts: it trains several models in one process."""
    own = {*OF_EACH, *NAMED_FIELDS}
    return tuple(
        name for name, info in fields_by_name().items() if name not in own and info.group != "cluster"
    )


def budget_of(config: Config) -> dict[str, Any]:
    """Return the fields, by name, that determine a training and its measurement, without model and seed."""
    known, values = fields_by_name(), config.flat()
    return {name: values[name] for name in shared_fields() if known[name].role in ("training", "measurement")}


def budget_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a line of text for each field in which two budgets differ.

    Args:
        there: the recorded budget. A field that it lacks, because an older labkit wrote it, has its default.
        here: the requested budget.
    """
    fields = fields_by_name()
    before = {name: there.get(name, fields[name].default) for name in here}
    return [
        f"{fields[name].flag} is {before[name]!r} there, {value!r} here"
        for name, value in here.items()
        if value != before[name]
    ]
