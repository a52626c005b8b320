"""A sweep: a notebook run once for each combination of some parameters, and one table of the results.

Each combination is an execution by ``labkit notebook run`` in a process of its own. The executed notebooks
are the record: parameters and results are read from them.
"""

import contextlib
import fcntl
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import InputError
from labkit.experiments.trials import Trial, TrialEnd, run_trials
from labkit.figures.style import MARK, drawing
from labkit.notebook.execution import SECONDS_TO_SAVE
from labkit.notebook.file_parameters import check_given, takes_flags
from labkit.notebook.files import conclusion_of, failed_path, find_notebook, read_notebook
from labkit.plurals import counted
from labkit.startup.child import python_command
from labkit.startup.interruption import stop_signals
from labkit.tables import html_table, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCK = ".sweep.lock"  # in the folder of a sweep, held while it runs


@dataclass(frozen=True)
class SweepPoint:
    """One execution.

    ``values``: of the parameters that the sweep varies. ``parameters``: all that papermill was given.
    ``notebook``: the executed notebook. ``result``: what it ended with
    (``labkit.notebook.prepared.Conclusion``), or None if it failed.
    """

    values: Mapping[str, Any]
    parameters: Mapping[str, Any]
    notebook: Path
    result: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The values in words."""
        return _in_words(self.values)

    @property
    def accuracy(self) -> float:
        """The fraction of images that were classified correctly; NaN if the notebook failed."""
        if self.result is not None and self.result["accuracy"] is None:
            raise InputError("a sweep compares accuracies, and the labels of this data set are numbers")
        return math.nan if self.result is None else float(self.result["accuracy"])

    @property
    def standard_error(self) -> float:
        """The standard error of ``accuracy`` that comes from the number of images alone."""
        if self.result is None:
            return math.nan
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.result["examples"])


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep in the order of their notebooks. A notebook shows it as a table, best first."""

    points: tuple[SweepPoint, ...]

    @property
    def ranked(self) -> list[SweepPoint]:
        """The points that have a result, the highest accuracy first."""
        return sorted((point for point in self.points if point.result), key=lambda point: -point.accuracy)

    @property
    def best(self) -> SweepPoint:
        """The point with the highest accuracy. Raises InputError if no notebook finished."""
        if not self.ranked:
            raise InputError("no notebook of the sweep finished; read their -failed.ipynb")
        return self.ranked[0]

    def grouped(self, without: str) -> dict[str, list[SweepPoint]]:
        """Return the points that differ in the parameter ``without`` alone, by the other values in words."""
        groups: dict[str, list[SweepPoint]] = {}
        for point in self.points:
            others = {name: value for name, value in point.values.items() if name != without}
            groups.setdefault(_in_words(others), []).append(point)
        return groups

    def accuracy_table(
        self, rows: str, columns: str
    ) -> tuple[list[object], list[object], NDArray[np.float64]]:
        """Return the values of two parameters and the accuracies, float64 [row, column]; NaN without result.

        Where the sweep varies other parameters too, such as the seed, each accuracy is the mean over them.

        Raises InputError for a parameter that the sweep doesn't vary.
        """
        names = list(self.points[0].values)
        for name in (rows, columns):
            if name not in names:
                raise InputError(f"the sweep doesn't vary {name}; it varies {', '.join(names)}")
        of_rows = list(dict.fromkeys(point.values[rows] for point in self.points))
        of_columns = list(dict.fromkeys(point.values[columns] for point in self.points))
        sums, runs = np.zeros((2, len(of_rows), len(of_columns)))
        for point in self.ranked:
            cell = of_rows.index(point.values[rows]), of_columns.index(point.values[columns])
            sums[cell] += point.accuracy
            runs[cell] += 1
        return of_rows, of_columns, np.where(runs, sums / np.maximum(runs, 1), np.nan)

    def heat_map(self, rows: str, columns: str) -> "Figure":
        """Draw the accuracy for each combination of two parameters; the highest one has a frame.

        Raises InputError for what ``accuracy_table`` refuses, and where no notebook finished.
        """
        from matplotlib.patches import Rectangle

        of_rows, of_columns, found = self.accuracy_table(rows, columns)
        assert self.best.result is not None
        split = self.best.result["split"]
        row, column = np.unravel_index(np.nanargmax(found), found.shape)
        alt = (
            f"Heat map of the {split} accuracy over {rows} and {columns}; the highest, "
            f"{found[row, column]:.1%}, is at {rows} {of_rows[row]}, {columns} {of_columns[column]}"
        )
        each = len(self.points) // found.size
        with drawing(2.6 + 1.3 * len(of_columns), 1.4 + 0.75 * len(of_rows), alt) as figure:
            axis = figure.subplots()
            image = axis.imshow(found * 100, cmap="cividis", aspect="auto")
            axis.set_xticks(range(len(of_columns)), [f"{value}" for value in of_columns])
            axis.set_yticks(range(len(of_rows)), [f"{value}" for value in of_rows])
            axis.set(xlabel=columns.replace("_", " "), ylabel=rows.replace("_", " "))
            title = f"{split} accuracy (%)".capitalize()
            axis.set_title(title + (f", mean of {each} runs" if each > 1 else ""))
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0)
            middle = (np.nanmin(found) + np.nanmax(found)) / 2
            for (y, x), value in np.ndenumerate(found):
                text = "failed" if np.isnan(value) else f"{value:.1%}"
                color = "white" if value < middle else "black"  # black on the white of a NaN
                axis.text(x, y, text, ha="center", va="center", color=color)
            frame = (column - 0.47, row - 0.47)
            axis.add_patch(Rectangle(frame, 0.94, 0.94, fill=False, edgecolor=MARK, linewidth=2.5))
            figure.colorbar(image, ax=axis, label="%")
        return figure

    def _rows(self) -> list[tuple[str, ...]]:
        names = list(self.points[0].values) if self.points else []
        splits = {str(point.result["split"]) for point in self.points if point.result}
        score = f"{'/'.join(sorted(splits))} accuracy".strip()
        rows = [(*names, score, "standard error", "steps", "notebook")]
        failed = [point for point in self.points if point.result is None]
        for point in (*self.ranked, *failed):
            found = ("failed", "–", "–")
            if point.result:
                found = (f"{point.accuracy:.3f}", f"{point.standard_error:.3f}", str(point.result["step"]))
            rows.append((*(str(point.values.get(name)) for name in names), *found, point.notebook.name))
        return rows

    def __str__(self) -> str:
        return text_table(self._rows())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        header, *rows = self._rows()
        return html_table(header, rows, caption=f"{counted(len(self.points), 'run')}, best first")


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each combination of the values, the last name's values changing first.

    Raises InputError for what is no grid, a grid without values, or with a value twice.
    """
    if not isinstance(grid, Mapping):
        raise InputError(f"the grid is {grid!r}; allowed: a dict of lists of values by a parameter's name")
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"the grid's {name} is {values!r}; allowed: a list of values")
        if any(values.index(value) != number for number, value in enumerate(values)):
            raise InputError(f"the grid's {name} has a value twice: {values!r}")
    if not grid:
        raise InputError("the grid is empty; name a parameter and a list of its values")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def run_sweep(
    notebook: str | os.PathLike[str],
    grid: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    at_a_time: int = 2,
    announce: Callable[[str], None] = print,
) -> list[Path]:
    """Run a notebook for each combination of a grid, and return the executed notebooks in the grid's order.

    A notebook that fails doesn't end the sweep; what it left is returned in its place (``…-failed.ipynb``).
    An interrupt ends all of them, and lets trainings save. All processes end when this one does.

    Args:
        notebook: a path, or the name of one of labkit's own, such as ``train``.
        grid: values by the name of the parameter.
        folder: for the executed notebooks, what they print (``.log``), and a folder for the run of each.
        parameters: the same for all combinations.
        at_a_time: how many run at once. They share the machine: one for each GPU, or for two to four cores.
        announce: takes a line when a notebook starts and when it ends.

    Results of an earlier sweep in the folder stay until the execution that replaces them starts.

    Raises InputError, before anything starts, for what a combination's parameters don't allow, for a folder
    that can't be written or that another sweep is writing, and for a combination that left no notebook.
    """
    if isinstance(at_a_time, bool) or not isinstance(at_a_time, int) or at_a_time < 1:
        raise InputError(f"at_a_time is {at_a_time!r}; allowed: a whole number of at least 1")
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"folder is {folder!r}; allowed: a path")
    folder, notebook = Path(folder), find_notebook(notebook)
    source, points = read_notebook(notebook), grid_points(grid)
    for name in grid:
        if name in (parameters or {}):
            raise InputError(f"{name} is in the grid and among the parameters of all runs; leave one out")
    trials, targets = [], []
    for number, values in enumerate(points, 1):
        target = folder / f"{_file_name(number, values)}.ipynb"
        given = {**(parameters or {}), **values}
        if takes_flags(source):
            given |= {"job_dir": str(folder / target.stem), "overwrite": True}
        check_given(source, given)
        words = [word for name, value in given.items() for word in ("-p", name, str(value))]
        command = python_command("-m", "labkit", "notebook", "run", notebook, *words, "--output", target)
        trials.append(Trial(command, log=target.with_suffix(".log")))
        targets.append(target)
    names = [f"{number} of {len(points)}: {_in_words(values)}" for number, values in enumerate(points, 1)]

    def start() -> Iterator[Trial]:
        for name, trial, target in zip(names, trials, targets, strict=True):
            announce(f"{name}: starts")
            for earlier in (target, failed_path(target)):
                earlier.unlink(missing_ok=True)
            yield trial

    reasons = [""] * len(trials)

    def ended(number: int, end: TrialEnd) -> None:
        last = trials[number].last_lines(1) or ["it printed nothing"]
        reasons[number] = end.reason or last[0]
        announce(f"{names[number]}: {reasons[number] if end.code else f'done in {end.seconds:.0f} s'}")

    with _only_sweep(folder), stop_signals() as signals:
        run_trials(start(), signals, ended, at_a_time=at_a_time, seconds_to_save=SECONDS_TO_SAVE)
        if signals:
            raise KeyboardInterrupt(signals[0])
    for number, target in enumerate(targets):
        if not target.exists():
            targets[number] = failed_path(target)
            if not targets[number].exists():
                raise InputError(f"{_in_words(points[number])}: {reasons[number]}")
    return targets


@contextlib.contextmanager
def _only_sweep(folder: Path) -> Iterator[None]:
    """Make the folder of a sweep and hold its lock. Raises InputError where it can't."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context((folder / LOCK).open("a")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another sweep is writing into {folder}; name another folder") from None
        except OSError as error:
            raise InputError(f"{folder} can't be written: {error.strerror}; name another folder") from None
        yield


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _file_name(number: int, values: Mapping[str, Any]) -> str:
    words = "_".join(f"{name}-{value}" for name, value in values.items())
    return f"{number}_" + re.sub(r"[^\w.+-]", "-", words)[:100]


def gather(notebooks: Iterable[Path], names: Iterable[str]) -> Sweep:
    """Return a sweep from executed notebooks, with the parameters that papermill recorded in them.

    Args:
        notebooks: as ``run_sweep`` returns them.
        names: of the parameters that the sweep varies.

    Raises InputError for a file that is no notebook which papermill executed.
    """
    names, points = list(names), []
    for path in notebooks:
        executed = read_notebook(path)
        parameters = executed.metadata.get("papermill", {}).get("parameters")
        if parameters is None:
            raise InputError(f"{path} was not executed by papermill with parameters")
        values = {name: parameters.get(name) for name in names}
        points.append(SweepPoint(values, dict(parameters), path, conclusion_of(executed)))
    return Sweep(tuple(points))
