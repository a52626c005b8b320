"""Read a comparison from the directory that ``labkit compare`` writes, and show it as a table.

``labkit.experiments.comparison.files`` describes the files. Doesn't import TensorFlow.
"""

import os
import shlex
from dataclasses import dataclass
from html import escape
from pathlib import Path

from labkit.analysis.inference import Spread, spread
from labkit.analysis.show_table import html_table, text_table
from labkit.config import fields_by_name
from labkit.errors import InputError
from labkit.experiments.comparison.files import Request, read_request
from labkit.experiments.comparison.read_runs import NOT_STARTED, RunMetrics, read_run
from labkit.home import expanded
from labkit.plurals import counted

__all__ = ["Comparison", "ModelMetrics", "read_comparison"]


@dataclass(frozen=True)
class ModelMetrics:
    """One model of a comparison and its trainings, one for each seed."""

    name: str
    runs: tuple[RunMetrics, ...]

    @property
    def finished(self) -> tuple[RunMetrics, ...]:
        return tuple(run for run in self.runs if run.finished)

    def spread(self, metric: str) -> Spread | None:
        """Return mean and deviation of a field of ``RunMetrics`` over the finished runs; None if unknown."""
        return spread(getattr(run, metric) for run in self.finished)

    def largest(self, metric: str) -> int | None:
        """Return the largest value of a field of ``RunMetrics`` over the finished runs; None if unknown."""
        return max(
            (value for run in self.finished if (value := getattr(run, metric)) is not None), default=None
        )


@dataclass(frozen=True)
class Comparison:
    """Models trained under one budget. A notebook displays them as a table."""

    path: Path
    request: Request
    models: tuple[ModelMetrics, ...]

    @property
    def runs(self) -> tuple[RunMetrics, ...]:
        return tuple(run for model in self.models for run in model.runs)

    @property
    def accuracy(self) -> str:
        """The field of ``RunMetrics`` to compare by: validation accuracy if the test set wasn't evaluated."""
        return "test_accuracy" if self.request.budget.get("evaluate_test", True) else "validation_accuracy"

    @property
    def command(self) -> str:
        """The shell command that makes this comparison."""
        arguments = ["labkit", "compare", "--models", ",".join(self.request.models)]
        arguments += ["--seeds", str(self.request.seeds), "--output", str(self.path)]
        if self.request.data_dir is not None:
            arguments += ["--data-dir", self.request.data_dir]
        for name, value in self.request.budget.items():
            info = fields_by_name()[name]
            if value == info.default:
                continue
            if isinstance(value, bool):
                arguments.append(info.flag if value else "--no-" + info.flag.removeprefix("--"))
            else:
                arguments += [info.flag, "none" if value is None else str(value)]
        return shlex.join(arguments)

    def table(self) -> list[tuple[str, ...]]:
        """Return the header and a row of cells for each model."""
        columns = [column for column in _COLUMNS if self._shows(column)]
        header = tuple(column.title for column in columns)
        return [header, *(tuple(column.text(model) for column in columns) for model in self.models)]

    def _shows(self, column: "_Column") -> bool:
        tests = self.accuracy == "test_accuracy"
        augments = self.request.budget.get("test_time_augmentation", "none") != "none"
        return {"test_accuracy": tests, "tta_accuracy": tests and augments}.get(column.metric, True)

    def notes(self) -> list[str]:
        """Return lines that explain the table: budget, devices, meaning of the columns, unfinished runs."""
        budget = self.request.budget
        devices = list(dict.fromkeys(run.device for run in self.runs if run.device))
        lines = [
            f"{budget['dataset']}: {counted(budget['train_steps'], 'step')} of "
            + counted(budget["train_batch_size"], "image")
            + (f" on {'; '.join(devices)}" if devices else ""),
            "values: mean ± sample standard deviation over seeds; accuracy: of the weights with the best "
            "validation; training seconds: of training steps only",
            "training images/s: of the median step; inference images/s: in batches of "
            f"{budget['eval_batch_size']:,} on one device",
            "peak memory: largest resident memory of the training process over all seeds; "
            "multiply-adds: of one image's forward pass",
        ]
        return lines + [_not_finished(run) for run in self.runs if not run.finished]

    def __str__(self) -> str:
        return "\n".join([text_table(self.table()), "", *self.notes()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        header, *rows = self.table()
        notes = "<br>".join(map(escape, self.notes()))
        return f"{html_table(header, rows)}<small>{notes}</small>"


def _not_finished(run: RunMetrics) -> str:
    if run.state == NOT_STARTED:
        return f"{run.name}: {run.state}"
    return f"{run.name}: {run.state} at step {run.step}" + (f": {run.message}" if run.message else "")


# ---- the table's columns -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """``metric``: the field of ``RunMetrics`` that the column shows."""

    title: str
    metric: str

    def text(self, model: ModelMetrics) -> str:
        if self.metric == "model":
            return model.name
        if self.metric == "finished":
            return f"{len(model.finished)} of {len(model.runs)}"
        if self.metric == "peak_memory_bytes":
            peak = model.largest(self.metric)
            return "-" if peak is None else f"{peak / 2**20:,.0f} MiB"
        found = model.spread(self.metric)
        if found is None:
            return "-"
        if self.metric in ("parameters", "multiply_adds"):
            return f"{found.mean / 1e6:,.2f} M"
        if self.metric.endswith("accuracy"):
            return _with_deviation(100 * found.mean, found.std and 100 * found.std, digits=2) + " %"
        return _with_deviation(found.mean, found.std, digits=0 if found.mean >= 100 else 1)


def _with_deviation(mean: float, std: float | None, digits: int) -> str:
    return f"{mean:,.{digits}f}" + ("" if std is None else f" ± {std:,.{digits}f}")


_COLUMNS = (
    _Column("model", "model"),
    _Column("runs", "finished"),
    _Column("test accuracy", "test_accuracy"),
    _Column("with augmentation", "tta_accuracy"),
    _Column("validation accuracy", "validation_accuracy"),
    _Column("training images/s", "training_images_per_second"),
    _Column("inference images/s", "inference_images_per_second"),
    _Column("peak memory", "peak_memory_bytes"),
    _Column("parameters", "parameters"),
    _Column("multiply-adds", "multiply_adds"),
    _Column("training seconds", "training_seconds"),
)


# ---- reading -------------------------------------------------------------------------------------------


def read_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Read a comparison, finished or not.

    Args:
        path: the ``--output`` directory of ``labkit compare``.

    Raises InputError if there is no comparison.
    """
    folder = expanded(path).absolute()
    request = read_request(folder)
    if request is None:
        raise InputError(f"{folder} holds no comparison; name the --output of labkit compare")
    seeds, budget = range(request.seeds), request.budget
    models = tuple(
        ModelMetrics(name, tuple(read_run(folder, name, seed, budget) for seed in seeds))
        for name in request.models
    )
    return Comparison(folder, request, models)
