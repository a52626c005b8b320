"""A search as its files tell it: what was asked for, the trials with their results, the best one so far."""

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from labkit.config import fields_by_name
from labkit.errors import InputError
from labkit.experiments.importance import importances
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import read_json

REQUEST, TRIALS, PRESET = "search.json", "trials.json", "preset.json"
LOST_SECONDS = 60.0  # without a word from the process that searches


class Setting(msgspec.Struct, frozen=True):
    """The values of a setting that are searched."""

    kind: Literal["float", "int", "choice"]
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: list[str | bool | int | float | None] = []


class Request(msgspec.Struct, frozen=True):
    """What was asked for."""

    space: dict[str, Setting]
    objective: str
    direction: Literal["maximize", "minimize"]
    rungs: list[int]
    sampler: str = ""
    halving: str = ""
    trials: int | None = None
    minutes: float | None = None
    preset: str | None = None
    fixed: dict[str, Any] = {}
    command: str = ""


class Result(msgspec.Struct, frozen=True):
    """What a trial had at a rung. ``at``: seconds of searching until then."""

    step: int
    value: float | None
    seconds: float
    at: float

    @property
    def is_known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


class Trial(msgspec.Struct, frozen=True):
    """A trial. ``runs``: names of its run directories. ``why``: it was pruned or failed."""

    number: int
    values: dict[str, Any]
    state: str
    step: int = 0
    results: list[Result] = []
    runs: list[str] = []
    worker: str = ""
    why: str = ""

    @property
    def last(self) -> Result | None:
        """Its last result that is a number."""
        return next((result for result in reversed(self.results) if result.is_known), None)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)


class Progress(msgspec.Struct, frozen=True):
    """How far the search is."""

    state: str
    trials: list[Trial]
    message: str = ""
    seconds: float = 0.0
    updated: float = 0.0
    pid: int | None = None
    host: str = ""
    repeat: Trial | None = None
    conclusion: dict[str, Any] | None = None


@dataclass(frozen=True)
class Study:
    """A search and its folder."""

    folder: Path
    request: Request
    progress: Progress

    @property
    def state(self) -> str:
        """Its state; ``lost`` where the process that searched has been silent for a minute."""
        silent = time.time() - self.progress.updated > LOST_SECONDS
        return "lost" if self.progress.state == "running" and silent else self.progress.state

    @property
    def sign(self) -> int:
        return 1 if self.request.direction == "maximize" else -1

    @cached_property
    def ranked(self) -> list[Trial]:
        """The trials, the best first: those with a result at a later rung come before the others."""

        def place(trial: Trial) -> tuple[float, ...]:
            last = trial.last
            if last is None or last.value is None:
                return (0, 0, trial.number)
            return (-last.step, -self.sign * last.value, trial.number)

        return sorted(self.progress.trials, key=place)

    @property
    def best(self) -> Trial | None:
        """The best trial so far; None before the first result."""
        return self.ranked[0] if self.ranked and self.ranked[0].last is not None else None

    @cached_property
    def results(self) -> list[tuple[Trial, Result]]:
        """All results that are numbers, in the order in which they came in."""
        found = [(trial, result) for trial in self.progress.trials for result in trial.results]
        return sorted((pair for pair in found if pair[1].is_known), key=lambda pair: pair[1].at)

    def improvements(self) -> Iterator[tuple[float, float]]:
        """Yield the seconds and the value of each result that was better than all before it."""
        best = None
        for _, result in self.results:
            value = float(result.value or 0.0)
            if best is None or self.sign * (value - best) > 0:
                best = value
                yield result.at, value

    def at_rung(self, step: int) -> list[tuple[Trial, float]]:
        """Return the trials that have a result at a rung, and the result."""
        return [(trial, float(result.value or 0.0)) for trial, result in self.results if result.step == step]

    def run(self, name: str) -> RunDirectory | None:
        """Return the run of a name in the folder; None where there is none."""
        run = RunDirectory(self.folder / Path(name).name)
        return run if run.exists() else None

    @property
    def runs_code(self) -> bool:
        """Whether its settings run a file or open ports, which nobody may have looked at."""
        if self.request.preset is not None and "." in self.request.preset:  # a file with further settings
            return True
        known = fields_by_name()
        given = [*self.request.fixed.items()]
        given += [(name, value) for name, one in self.request.space.items() for value in one.choices]
        for name, value in given:
            info = known.get(name)
            if info is None or not info.acts or value == info.default:
                continue
            if not info.is_code or info.file_of(value) is not None:
                return True
        return False


def read_study(folder: Path) -> Study:
    """Read a search. Raises InputError where a file is missing or can't be read."""
    try:
        request: Request = read_json(folder / REQUEST, Request)
        progress: Progress = read_json(folder / TRIALS, Progress)
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no search: it has no {Path(error.filename).name}") from None
    return Study(folder, request, progress)


def rung_rows(study: Study, shown: Any) -> list[tuple[str, ...]]:
    """Return a table of the rungs: the header, then a row for each. ``shown`` makes a value a text."""
    rows: list[tuple[str, ...]] = [
        ("step", "trials with a result", "best", "median", "went on", "pruned here", "failed here")
    ]
    for step in study.request.rungs:
        found = study.at_rung(step)
        values = [value for _, value in found]
        further = sum(trial.results[-1].step > step for trial, _ in found)
        ended = {
            state: sum(trial.state == state and trial.results[-1].step == step for trial, _ in found)
            for state in ("pruned", "failed")
        }
        best = shown(study.sign * max(study.sign * value for value in values)) if values else "–"
        median = shown(statistics.median(values)) if values else "–"
        counts = (further, ended["pruned"], ended["failed"])
        rows.append((f"{step:,}", f"{len(found):,}", best, median, *(f"{count:,}" for count in counts)))
    return rows


Importance = tuple[list[tuple[str, float]], int, int]


def importance(study: Study) -> Importance:
    """Return the share of each setting, the step of the rung with most results, and how many it has.

    At one rung all trials have trained as long. Raises InputError as ``importances`` does.
    """
    step = max(study.request.rungs, key=lambda step: (len(study.at_rung(step)), -step))
    found = [
        (trial.values, value)
        for trial, value in study.at_rung(step)
        if trial.values.keys() >= study.request.space.keys()
    ]
    return importances(study.request.space, found, direction=study.request.direction), step, len(found)
