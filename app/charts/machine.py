"""What the processes of a run take of their machines, as charts of the live page."""

import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.charts.board import PALETTE, Chart, Line
from app.charts.store import Snapshot, follow, steady, timeline_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.columns import Floats, Table, columns_of
from labkit.run_directory.machine import machine_rows_paths
from labkit.run_directory.rows import RowReader

MAX_PROCESSES = 16  # that are drawn
MAX_GPUS = 16  # of each
NEEDED = ("wall_time", "cpu_cores", "memory_bytes")  # of a row
CHARTS = {  # titles and units
    "cpu": ("CPU use", "percent"),
    "memory": ("Memory", "bytes"),
    "disk": ("Disk, per second", "bytes"),
    "gpu": ("GPU use", "percent"),
    "gpu-memory": ("GPU memory in use", "bytes"),
}


@dataclass
class _Process:
    """The rows of one process so far."""

    reader: RowReader
    name: str = ""
    table: Table = field(default_factory=Table)


class Machine(NamedTuple):
    """The rows of each process by its name, at one poll. Later polls don't change it."""

    tables: dict[str, Table]
    version: int  # grows with every change


class MachineStore:
    """Follows the machine rows of all processes of a run. Several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._run = RunDirectory(path)
        self._processes: dict[Path, _Process] = {}
        self._lock = threading.Lock()
        self._machine = Machine({}, 0)

    def poll(self) -> Machine:
        """Read what was appended and return the rows. Raises OSError for an unreadable file."""
        with self._lock:
            changed = [self._follow(path) for path in machine_rows_paths(self._run)]
            if any(changed):
                tables = {one.name: one.table.view() for one in self._processes.values() if one.table.size}
                self._machine = Machine(tables, self._machine.version + 1)
            return self._machine

    def _follow(self, path: Path) -> bool:
        one = self._processes.setdefault(path, _Process(RowReader(path, keep_rows=False)))

        def take(rows: list[dict[str, Any]]) -> None:
            if rows := [row for row in rows if all(type(row.get(name)) in (int, float) for name in NEEDED)]:
                one.name = str(rows[-1].get("process", ""))[:80]
                one.table.extend(len(rows), columns_of(rows))

        return follow(one.reader, take, lambda: setattr(one, "table", Table()))


def machine_charts(machine: Machine, metrics: Snapshot, axis: str) -> list[Chart]:
    """Return the charts of CPU (share of all cores), memory, disk and GPUs; none if nothing is known.

    Args:
        machine: rows of all processes.
        metrics: of the same run: they tell which step was made when.
        axis: a key of ``AXES``. Rows before the first and after the last step are only on the clock's axis.
    """
    shown = dict(list(machine.tables.items())[:MAX_PROCESSES])
    alone = len(shown) == 1
    lines: defaultdict[str, list[Line]] = defaultdict(list)

    def add(chart: str, name: str, column: Floats, color: str = "") -> None:
        """Add a line, in a colour of its own if none is given: two of a process would look alike."""
        known = np.isfinite(x) & np.isfinite(column)
        color = color or PALETTE[len(lines[chart]) % len(PALETTE)]
        lines[chart].append(Line(name, x[known], column[known], color))

    for number, (name, table) in enumerate(shown.items()):
        x = _positions(table, metrics, axis)
        color, label = PALETTE[number % len(PALETTE)], "run" if alone else name
        cores = np.where(_column(table, "cores") > 0, _column(table, "cores"), np.nan)
        add("cpu", label, _column(table, "cpu_cores") / cores, color)
        if alone:
            add("cpu", "whole machine", _column(table, "machine_cpu_fraction"), PALETTE[7])
        add("memory", label, _column(table, "memory_bytes"), color)
        for what in ("read", "written"):
            rate = _column(table, f"{what}_bytes_per_second")
            add("disk", what if alone else f"{name}, {what}", rate)
        for gpu in _gpus(table):
            label = f"GPU {gpu}" if alone else f"{name}, GPU {gpu}"
            add("gpu", label, _column(table, f"gpu{gpu}_use_fraction"))
            add("gpu-memory", label, _column(table, f"gpu{gpu}_memory_bytes"))
    charts = (Chart(f"machine-{key}", title, lines[key], unit) for key, (title, unit) in CHARTS.items())
    return [chart for chart in charts if any(len(line.x) for line in chart.lines)]


def peak(machine: Machine) -> tuple[float, float]:
    """Return the most bytes that all processes took together, and one of them on a GPU; 0: unknown."""

    def most(table: Table, name: str) -> float:
        return float(np.nan_to_num(_column(table, name)).max(initial=0.0))

    tables = machine.tables.values()
    gpus = [most(table, f"gpu{gpu}_process_memory_bytes") for table in tables for gpu in _gpus(table)]
    return sum(most(table, "memory_bytes") for table in tables), max(gpus, default=0.0)


def _gpus(table: Table) -> list[int]:
    """Return the numbers of the GPUs that rows of the process name, ascending."""
    found = (re.fullmatch(r"gpu(\d{1,4})_(?:use_fraction|memory_bytes)", name) for name in table.columns)
    return sorted({int(match[1]) for match in found if match})[:MAX_GPUS]


def _positions(table: Table, metrics: Snapshot, axis: str) -> Floats:
    clock = steady(table.columns["wall_time"])
    if axis == "clock":
        return clock
    timeline = timeline_of(metrics)
    if not len(timeline.clock):
        return np.full(len(clock), np.nan)
    return np.interp(clock, timeline.clock, timeline.on(axis), left=np.nan, right=np.nan)


def _column(table: Table, name: str) -> Floats:
    found = table.columns.get(name)
    return np.full(table.size, np.nan) if found is None else found
