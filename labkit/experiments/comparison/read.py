"""Read a comparison from the directory that ``labkit compare`` writes; as a table, CSV, JSON and Markdown.

``labkit.experiments.comparison.files`` describes the files. Doesn't import TensorFlow.
"""

import csv
import dataclasses
import io
import json
import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from labkit.analysis.inference import Spread, fold_interval, spread
from labkit.config import DataConfig, fields_by_name
from labkit.config.config import flags_of
from labkit.config.presets import changed_by_merging
from labkit.errors import InputError
from labkit.experiments.comparison.files import Request, read_measurements, read_request, run_directory
from labkit.home import expanded
from labkit.plurals import counted
from labkit.run_directory.metrics import chosen_step, own_test
from labkit.run_directory.reader import MetricsReader, read_metrics
from labkit.tables import html_table, markdown_table, text_table

WARM_UP_STEPS = 5  # the first step of a session compiles; during the next ones, memory and prefetching settle
NOT_STARTED = "not started"
COUNTS = ("parameters", "multiply_adds")
MEASURED = ("inference_images_per_second", "peak_memory_bytes", *COUNTS)
# Metrics that JSON and CSV give as mean and deviation over the seeds.
SPREADS = (
    "test_accuracy",
    "tta_accuracy",
    "validation_accuracy",
    "training_images_per_second",
    "inference_images_per_second",
    "training_seconds",
    "peak_memory_bytes",
)


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
    forward pass. ``device``: that it was trained on. ``fold``: such as ``2/5``; "" without folds.
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
    fold: str = ""

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def name(self) -> str:
        return f"{self.model}{self.fold and f', fold {self.fold}'}, seed {self.seed}"


@dataclass(frozen=True)
class ModelMetrics:
    """One model of a comparison and its trainings, one for each seed and fold."""

    name: str
    runs: tuple[RunMetrics, ...]

    @property
    def finished(self) -> tuple[RunMetrics, ...]:
        return tuple(run for run in self.runs if run.finished)

    def spread(self, metric: str) -> Spread | None:
        """Return mean and deviation of a field of ``RunMetrics`` over the finished runs; None if unknown."""
        return spread(getattr(run, metric) for run in self.finished)

    @property
    def validated(self) -> dict[str, float]:
        """The validation accuracy on each fold, over the finished runs of all seeds."""
        known: dict[str, list[float]] = {}
        for run in self.finished:
            if run.validation_accuracy is not None:
                known.setdefault(run.fold, []).append(run.validation_accuracy)
        return {fold: statistics.fmean(values) for fold, values in known.items()}

    def largest(self, metric: str) -> int | None:
        """Return the largest value of a field of ``RunMetrics`` over the finished runs; None if unknown."""
        return max(
            (value for run in self.finished if (value := getattr(run, metric)) is not None), default=None
        )

    def to_json(self) -> dict[str, Any]:
        """Return its metrics and runs, ready for JSON."""
        spreads = {metric: self.spread(metric) for metric in SPREADS}
        return {
            "model": self.name,
            **{metric: self.largest(metric) for metric in COUNTS},
            **{metric: found and dataclasses.asdict(found) for metric, found in spreads.items()},
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }


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
        arguments += ["--folds", str(self.request.folds)] if self.request.folds else []
        arguments += ["--seeds", str(self.request.seeds), "--output", str(self.path)]
        if self.request.data_dir is not None:
            arguments += ["--data-dir", self.request.data_dir]
        fields, budget = fields_by_name(), self.request.budget.items()
        changed = {name: value for name, value in budget if value != fields[name].default}
        changed |= changed_by_merging(changed, self.request.budget)
        return shlex.join([*arguments, *flags_of(changed)])

    def table(self) -> list[tuple[str, ...]]:
        """Return the header and a row of cells for each model."""
        tests = self.accuracy == "test_accuracy"
        augments = self.request.budget.get("test_time_augmentation", "none") != "none"
        shown = {"test_accuracy": tests, "tta_accuracy": tests and augments}
        columns = {title: metric for title, metric in _COLUMNS.items() if shown.get(metric, True)}
        rows = [tuple(_cell(model, metric) for metric in columns.values()) for model in self.models]
        return [tuple(columns), *rows]

    def notes(self) -> list[str]:
        """Return lines that explain the table: budget, devices, meaning of the columns, unfinished runs."""
        budget = self.request.budget
        devices = list(dict.fromkeys(run.device for run in self.runs if run.device))
        lines = [
            f"{budget['dataset']}: {counted(budget['train_steps'], 'step')} of "
            + counted(_images_per_step(budget), "image")
            + (f" on {'; '.join(devices)}" if devices else ""),
            f"values: mean ± sample standard deviation over {'folds' if self.request.folds else 'seeds'}; "
            "accuracy: of the weights with the best validation; training seconds: of training steps only",
            "training images/s: of the median step; inference images/s: in batches of "
            f"{budget['eval_batch_size']:,} on one device",
            "peak memory: largest resident memory of the training process over all runs; "
            "multiply-adds: of one image's forward pass",
        ]
        lines += told_of_folds(self.models, self.request.folds)
        return lines + [_not_finished(run) for run in self.runs if not run.finished]

    def __str__(self) -> str:
        return "\n".join([text_table(self.table()), "", *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        header, *rows = self.table()
        notes = "<br>".join(map(escape, self.notes()))
        return f"{html_table(header, rows)}<small>{notes}</small>"

    def as_json(self) -> str:
        """Return everything as JSON. Accuracies are from 0 to 1; null means unknown."""
        models = [model.to_json() for model in self.models]
        value = {"command": self.command, **dataclasses.asdict(self.request), "models": models}
        return json.dumps(value, indent=2) + "\n"

    def as_csv(self) -> str:
        """Return a row for each model, with ``_mean`` and ``_std`` over finished runs; empty: unknown."""
        names = [f"{metric}_{part}" for metric in SPREADS for part in ("mean", "std")]
        target = io.StringIO()
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(["model", "runs", "finished_runs", *COUNTS, *names])
        for model in self.models:
            cells: list[Any] = [model.name, len(model.runs), len(model.finished)]
            cells += [model.largest(metric) for metric in COUNTS]
            for metric in SPREADS:
                found = model.spread(metric)
                cells += [None, None] if found is None else [found.mean, found.std]
            writer.writerow(cells)
        return target.getvalue()

    def as_markdown(self) -> str:
        """Return the table, its notes and the command as Markdown."""
        notes = "\n".join(f"- {note}" for note in self.notes())
        return f"{markdown_table(self.table())}\n\n{notes}\n\n```\n{self.command}\n```\n"


def _not_finished(run: RunMetrics) -> str:
    if run.state == NOT_STARTED:
        return f"{run.name}: {run.state}"
    return f"{run.name}: {run.state} at step {run.step}" + (f": {run.message}" if run.message else "")


_NOTHING_TELLS = "so nothing tells how sure that is"


def told_of_folds(models: Sequence[ModelMetrics], folds: int) -> list[str]:
    """Return what cross-validation tells of the models, as sentences; none before two folds are finished."""
    known = {model.name: found for model in models if folds and len(found := model.validated) > 1}
    if not known:
        return []
    lines = []
    for name, found in known.items():
        told = fold_interval(list(found.values()), folds)
        sure = f"95 % interval {100 * max(told.low, 0):.2f} to {100 * min(told.high, 1):.2f} %"
        if math.isclose(told.low, told.high):  # as few folds of few images may give by chance
            sure = f"the same in each, {_NOTHING_TELLS}"
        lines.append(f"{name}: validation accuracy {100 * told.mean:.2f} % over {told.count} folds, {sure}")
    best = max(known, key=lambda name: statistics.fmean(known[name].values()))
    for name in known:
        both = [fold for fold in known[best] if fold in known[name]]
        if name == best or len(both) < 2:
            continue
        told = fold_interval([known[best][fold] - known[name][fold] for fold in both], folds)
        better = best if told.mean > 0 else name  # the best of all its folds may be worse on those of both
        shown = "neither is shown to be better" if told.contains_zero else f"{better} is better"
        if told.mean and math.isclose(told.low, told.high):
            shown = f"all folds differ by the same, {_NOTHING_TELLS}"
        lines.append(f"{best} against {name}, fold by fold: {told}: {shown}")
    return [
        *lines,
        "the intervals are wider than those of independent runs, because trainings on folds share images "
        f"(Nadeau and Bengio, 2003): the variance of a mean of {folds} folds counts as 1/{folds} + "
        f"1/{folds - 1} of that of one fold, not as 1/{folds}",
        "the weights of each run were chosen by the validation of its fold, which makes all of these "
        "accuracies a little too high",
    ]


# ---- the table's columns -------------------------------------------------------------------------------


# Their titles, and the field of ``RunMetrics`` that each shows.
_COLUMNS = {
    "model": "model",
    "runs": "finished",
    "test accuracy": "test_accuracy",
    "with augmentation": "tta_accuracy",
    "validation accuracy": "validation_accuracy",
    "training images/s": "training_images_per_second",
    "inference images/s": "inference_images_per_second",
    "peak memory": "peak_memory_bytes",
    "parameters": "parameters",
    "multiply-adds": "multiply_adds",
    "training seconds": "training_seconds",
}


def _cell(model: ModelMetrics, metric: str) -> str:
    if metric == "model":
        return model.name
    if metric == "finished":
        return f"{len(model.finished)} of {len(model.runs)}"
    if metric == "peak_memory_bytes":
        peak = model.largest(metric)
        return "-" if peak is None else f"{peak / 2**20:,.0f} MiB"
    found = model.spread(metric)
    if found is None:
        return "-"
    if metric in ("parameters", "multiply_adds"):
        return f"{found.mean / 1e6:,.2f} M"
    if metric.endswith("accuracy"):
        return _with_deviation(100 * found.mean, found.std and 100 * found.std, digits=2) + " %"
    return _with_deviation(found.mean, found.std, digits=0 if found.mean >= 100 else 1)


def _with_deviation(mean: float, std: float | None, digits: int) -> str:
    return f"{mean:,.{digits}f}" + ("" if std is None else f" ± {std:,.{digits}f}")


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
    trained, budget = request.trained, request.budget
    models = tuple(
        ModelMetrics(name, tuple(_read_run(folder, name, *which, budget) for which in trained))
        for name in request.models
    )
    return Comparison(folder, request, models)


def _read_run(folder: Path, model: str, seed: int, fold: str, budget: Mapping[str, Any]) -> RunMetrics:
    """Read the training of ``model`` with ``seed`` on ``fold`` from the folder of a comparison."""
    run = run_directory(folder, model, seed, fold)
    status = run.read_status()
    if status is None:
        return RunMetrics(model, seed, fold=fold)
    reader = read_metrics(run)
    measured = read_measurements(run)
    return RunMetrics(
        model,
        seed,
        fold=fold,
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
    seconds = {row["step"]: float(row["seconds_per_step"]) for row in reader.split("train")}
    starts = [0, *(resume_point.step for resume_point in reader.resume_points)]
    warming = {start + step for start in starts for step in range(1, WARM_UP_STEPS + 1)}
    compiling = {start + 1 for start in [*starts, *_changes(budget)]}
    warm = [value for step, value in seconds.items() if step not in warming | compiling]
    if not warm:
        return {"training_images_per_second": None, "training_seconds": sum(seconds.values()) or None}
    median = statistics.median(warm)
    total = sum(median if step in compiling else value for step, value in seconds.items())
    return {"training_images_per_second": _images_per_step(budget) / median, "training_seconds": total}


def _images_per_step(budget: Mapping[str, Any]) -> int:
    return int(budget["train_batch_size"]) * int(budget.get("accumulate_steps", 1))


def _changes(budget: Mapping[str, Any]) -> list[int]:
    """Return the steps after which the step is compiled again: for a new image size or other frozen layers.

    Only the network knows how many stages can thaw, so every step at which one might thaw is included.
    """
    total_steps, thaws_every = int(budget["train_steps"]), int(budget.get("unfreeze_every_steps", 0))
    data = DataConfig(progressive_resizing=budget.get("progressive_resizing"))
    thaws = range(thaws_every, total_steps, thaws_every) if thaws_every else ()
    return [*data.resizing_steps(total_steps), *thaws]
