"""How fast are two workers on this machine, and how long do they take to start?

`labkit cluster local` with two workers of one thread each is compared with one process of two threads: fresh
processes in turn, with the same global batch.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import train_flags
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import MetricsReader

QUESTION = "Are two workers as fast as one process with the same cores, and how soon do they start?"
START_GOAL = Goal("at most", 1.5)
SECONDS_TO_START = 300.0
SECONDS_WITHOUT_A_STEP = 120.0
SECONDS_TO_END = 90.0


@dataclass(frozen=True)
class Mode:
    """A cluster to measure: its label, and flags of ``labkit cluster local`` and ``labkit train``."""

    label: str
    cluster: tuple[str, ...]
    train: tuple[str, ...]
    goal: Goal


MODES = {
    "sync": Mode("two sync workers", ("--workers", "2"), ("--sync",), Goal("at least", 0.85)),
    "async": Mode(
        "two async workers", ("--workers", "2", "--ps", "1"), ("--no-sync",), Goal("at least", 0.9)
    ),
}


@dataclass(frozen=True)
class Started:
    """One run: seconds from the command to the end of the first step, and speed after the warm-up."""

    start_seconds: float
    images_per_second: float


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=24, help="timed steps of each run")
    parser.add_argument("--warmup-steps", type=at_least(1), default=6, help="steps before them")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="clusters to measure")
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("scaling", QUESTION, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        runs = measure(options, manifest, folder)
    report.finish(figures(runs), options.output)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> dict[str, list[Started]]:
    """Return one run of one process and of each mode a repeat; every second repeat has the reverse order."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    commands = {"one process": ["train", "--num-intra-threads", "2", *flags]}
    for name in options.modes:
        mode = MODES[name]
        train = ["train", "--num-intra-threads", "1", *mode.train, *flags]
        commands[name] = ["cluster", "local", *mode.cluster, "--", *train]
    runs: dict[str, list[Started]] = {name: [] for name in commands}
    for repeat in range(options.repeats):
        for name in list(commands) if repeat % 2 == 0 else list(commands)[::-1]:
            job_dir = folder / f"{name.replace(' ', '-')}-{repeat}"
            runs[name].append(measure_run(commands[name], job_dir, options))
        line = ", ".join(
            f"{name} {values[-1].images_per_second:.0f} (start {values[-1].start_seconds:.1f} s)"
            for name, values in runs.items()
        )
        print(f"repeat {repeat + 1}/{options.repeats}, images/s: {line}", flush=True)
    return runs


def measure_run(arguments: Sequence[str], folder: Path, options: argparse.Namespace) -> Started:
    """Run a ``labkit`` command that trains in ``folder`` for the requested number of steps, then end it."""
    count = options.warmup_steps + options.steps + 1
    started, rows = rows_of_run(arguments, folder, lambda rows: len(rows) >= count)
    speed = images_per_second(rows[options.warmup_steps : count], options.batch_size)
    return Started(rows[0]["wall_time"] - started, speed)


def rows_of_run(
    arguments: Sequence[str], folder: Path, enough: Callable[[list[dict[str, Any]]], bool]
) -> tuple[float, list[dict[str, Any]]]:
    """Run a ``labkit`` command that trains in ``folder`` until its rows are ``enough``, then end it.

    Returns the time of the start, in seconds since 1970, and the rows. Raises RuntimeError with the end of
    its output if it ends before that or stalls.
    """
    run, log = RunDirectory(folder), folder.with_suffix(".log")
    with open(log, "wb") as output:
        started = time.time()  # the clock of the rows' wall_time
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit", *arguments, "--job-dir", str(folder)],
            stdout=output,
            stderr=output,
            cwd=ROOT,
        )
    try:
        return started, _rows_until(run, enough, process, log)
    finally:
        _end(process)


def _rows_until(
    run: RunDirectory,
    enough: Callable[[list[dict[str, Any]]], bool],
    process: subprocess.Popen,
    log: Path,
) -> list[dict[str, Any]]:
    reader = MetricsReader(run.metrics_path)
    seen, give_up = 0, time.monotonic() + SECONDS_TO_START
    while True:
        reader.poll()
        if enough(reader.rows):
            return list(reader.rows)
        if len(reader.rows) > seen:
            seen, give_up = len(reader.rows), time.monotonic() + SECONDS_WITHOUT_A_STEP
        if process.poll() is not None or time.monotonic() > give_up:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(
                f"no step {seen + 1}; exit code {process.returncode}; the end of the output:\n{tail}"
            )
        time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
    """End a training, or a launcher with all its tasks."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def images_per_second(rows: Sequence[dict[str, Any]], batch_size: int) -> float:
    """Return the speed over all steps between the rows, which may be in any order."""
    steps, times = ([row[name] for row in rows] for name in ("step", "wall_time"))
    return (max(steps) - min(steps)) * batch_size / (max(times) - min(times))


def figures(runs: dict[str, list[Started]]) -> list[Figure]:
    """Return each mode's ratios to one process for every repeat, then the absolute values."""
    alone = runs["one process"]
    ratios, absolute = [], []
    for name, values in runs.items():
        label = MODES[name].label if name in MODES else name
        if name in MODES:
            pairs = list(zip(values, alone, strict=True))
            speeds = tuple(ours.images_per_second / one.images_per_second for ours, one in pairs)
            starts = tuple(ours.start_seconds / one.start_seconds for ours, one in pairs)
            goal = START_GOAL if name == "sync" else None
            ratios.append(Figure(f"{label} over one process, speed", "x", speeds, MODES[name].goal))
            ratios.append(Figure(f"{label} over one process, start to first step", "x", starts, goal))
        absolute.append(Figure(label, "images/s", tuple(value.images_per_second for value in values)))
        absolute.append(Figure(f"{label}, start", "s", tuple(value.start_seconds for value in values)))
    return [*ratios, *absolute]


if __name__ == "__main__":
    main()
