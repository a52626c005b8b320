"""The result of a benchmark: figures with all repeats and goals, the machine, as JSON and as a table."""

import datetime
import json
import operator
import os
import platform
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from labkit.run_directory import write_json_atomic

PACKAGES = ("labkit", "tensorflow", "keras", "numpy", "tensorboard", "torch", "openvino", "onnxruntime")
INSTRUCTION_SETS = re.compile(r"sse4_2|fma|avx.*|amx.*|asimd.*|sve.*")
# Variables that affect TensorFlow's speed or memory allocation (TF_CLI_ belongs to Terraform).
ENVIRONMENT = re.compile(r"(TF(?!_CLI)|XLA|MALLOC|OMP|KMP|ONEDNN|DNNL|CUDA|KERAS)_|LD_PRELOAD$")


@dataclass(frozen=True)
class Goal:
    """A bound on a median. ``bound`` is ``at least``, ``at most`` or ``below``."""

    bound: str
    value: float

    def is_met(self, figure: float) -> bool:
        """Return whether ``figure`` is within the bound; NaN never is."""
        holds = {"at least": operator.ge, "at most": operator.le, "below": operator.lt}[self.bound]
        return holds(figure, self.value)


@dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Args:
        name: what was measured.
        unit: such as ``images/s``, ``s``, ``GB``; ``x`` for ratios, ``%`` for shares.
        repeats: one value per repeat, in the order of measurement.
        goal: what the median should reach; None for figures that are only reported.
    """

    name: str
    unit: str
    repeats: Sequence[float]
    goal: Goal | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "repeats", tuple(self.repeats))
        if not self.repeats:
            raise ValueError(f"{self.name!r} was never measured")

    @property
    def median(self) -> float:
        return statistics.median(self.repeats)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the goal; None without one."""
        return None if self.goal is None else self.goal.is_met(self.median)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "minimum": min(self.repeats),
            "maximum": max(self.repeats),
            "repeats": list(self.repeats),
            "goal": None if self.goal is None else {"bound": self.goal.bound, "value": self.goal.value},
            "met": self.met,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Figure":
        """Inverse of ``to_json``; median and verdict are computed from the repeats again."""
        goal = Goal(value["goal"]["bound"], value["goal"]["value"]) if value["goal"] else None
        return cls(value["name"], value["unit"], value["repeats"], goal)


class Report:
    """One script's result. Create it before measuring: it records the date and the load of the machine.

    Args:
        name: of the script, and of the file in ``results/``.
        description: of the script; its first line is the question that it answers.
        configuration: all settings, flags included. Paths are left out: they don't affect the figures, and
            results are published.
    """

    def __init__(self, name: str, description: str | None, configuration: Mapping[str, Any]) -> None:
        self.name, self.question = name, (description or "").partition("\n")[0]
        self.configuration = {
            key: value for key, value in configuration.items() if not isinstance(value, Path)
        }
        self._started = datetime.datetime.now(datetime.UTC)
        self._load = [round(value, 2) for value in os.getloadavg()]

    def finish(self, figures: Sequence[Figure], output: Path) -> Path:
        """Write ``<output>/<name>.json``, print the table, return the file's path."""
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{self.name}.json"
        write_json_atomic(
            path,
            {
                "name": self.name,
                "question": self.question,
                "date": self._started.isoformat(timespec="seconds"),
                "seconds": round((datetime.datetime.now(datetime.UTC) - self._started).total_seconds(), 1),
                "load_average_before": self._load,
                **describe_machine(),
                "configuration": self.configuration,
                "figures": [figure.to_json() for figure in figures],
            },
        )
        print_table(self.question, [("", figure) for figure in figures])
        print(f"written to {path}", flush=True)
        return path


def ratios(ours: Iterable[float], theirs: Iterable[float], factor: float = 1.0) -> tuple[float, ...]:
    """Return ``factor`` times the quotient of each repeat."""
    return tuple(factor * one / other for one, other in zip(ours, theirs, strict=True))


def read_figures(path: Path) -> list[Figure]:
    """Return the figures of a file written by ``Report.finish``."""
    return [Figure.from_json(value) for value in json.loads(path.read_text())["figures"]]


def read_origin(path: Path) -> tuple[datetime.datetime, str]:
    """Return the date of a file written by ``Report.finish``, and the machine in words."""
    content = json.loads(path.read_text())
    hardware, versions = content["hardware"], content["versions"]
    memory = hardware["memory_bytes"] / 2**30
    return datetime.datetime.fromisoformat(content["date"]), (
        f"{hardware['cpu']}, {hardware['cores_allowed']} cores, {memory:.0f} GiB, "
        f"Python {versions['python']}, TensorFlow {versions['tensorflow']}"
    )


def print_table(title: str, rows: Iterable[tuple[str, Figure]]) -> None:
    """Print a table of (benchmark or "", figure): median, spread, goal, met or missed."""
    rows = list(rows)
    named = any(name for name, _ in rows)
    table = Table(title=title, title_justify="left")
    for column in (*(["benchmark"] if named else []), "figure"):
        table.add_column(column, overflow="fold")
    for column in ("median", "min-max", "goal", ""):
        table.add_column(column, no_wrap=True)
    for name, figure in rows:
        goal = "" if figure.goal is None else f"{figure.goal.bound} {_text(figure.goal.value, figure.unit)}"
        verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]
        spread = f"{_text(min(figure.repeats))}-{_text(max(figure.repeats), figure.unit)}"
        cells = [figure.name, _text(figure.median, figure.unit), spread, goal, verdict]
        table.add_row(*([name] if named else []), *cells)
    # A pipe has no width; a table folded to 80 columns would be unreadable in a log.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _text(value: float, unit: str = "") -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}{'' if unit in ('', 'x', '%') else ' '}{unit}"


# ---- the machine -------------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Return ``hardware``, ``versions`` and the ``environment`` variables that matter for speed."""
    cpu = _cpu_information()
    return {
        "hardware": {
            "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
            "cpu_family_model_stepping": [cpu.get(key) for key in ("cpu family", "model", "stepping")],
            "instruction_sets": [
                flag for flag in cpu.get("flags", "").split() if INSTRUCTION_SETS.match(flag)
            ],
            "logical_cores": psutil.cpu_count(),
            "physical_cores": psutil.cpu_count(logical=False),
            "cores_allowed": len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "environment": {name: value for name, value in sorted(os.environ.items()) if ENVIRONMENT.match(name)},
    }


def _cpu_information() -> dict[str, str]:
    """Return the first CPU's entries of /proc/cpuinfo; empty without that file."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
