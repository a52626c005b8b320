"""How fast are two workers on this machine, how long do they take to start, and what would many GPUs give?

The first two are measured: `labkit cluster local` with two workers of one thread each, against one process
with two threads, fresh processes in turn, the same global batch. The last is a model (`network_model.py`):
the step of one device, the bytes that a step reduces and a stated network give the speed of 2 to 256 GPUs.
"""

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT, at_least, make_parser, prepared_data, work_folder
from benchmarks.network_model import DEVICES, NETWORKS, NVLINK, Network, Prediction, predict
from benchmarks.processes import train_flags
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader

QUESTION = "Are two workers nearly as fast as one process with their cores, and what would 256 GPUs give?"
START_GOAL = Goal("at most", 1.5)
SECONDS_TO_START = 300.0
SECONDS_WITHOUT_A_STEP = 120.0
SECONDS_TO_END = 90.0


@dataclass(frozen=True)
class Mode:
    """A cluster to measure: words for people, flags of ``labkit cluster local`` and ``labkit train``."""

    words: str
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
    """One run: seconds from the command to the end of the first step, and its speed after the warm-up."""

    start_seconds: float
    images_per_second: float


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=24, help="steps that are timed, in each run")
    parser.add_argument("--warmup-steps", type=at_least(1), default=6, help="steps before them")
    parser.add_argument(
        "--modes", nargs="*", choices=MODES, default=list(MODES), help="none: the model alone"
    )
    parser.add_argument(
        "--step-milliseconds", type=float, help="of one device, for the model (measured here)"
    )
    parser.add_argument("--gradient-megabytes", type=float, help="that a step reduces (the model's, float32)")
    parser.add_argument(
        "--network",
        type=Network.parse,
        action="append",
        metavar="NAME:GBIT:MICROSECONDS",
        help="between nodes, for the model; may be repeated (default: see network_model.py)",
    )
    parser.add_argument("--gpus-per-node", type=at_least(1), default=8, help="for the model")
    options = parser.parse_args(arguments)
    if options.step_milliseconds is not None and options.step_milliseconds <= 0:
        parser.error(f"--step-milliseconds is {options.step_milliseconds}; allowed: a number above 0")
    size = (
        reduced_bytes(options.num_layers)
        if options.gradient_megabytes is None
        else options.gradient_megabytes * 1e6
    )
    if options.step_milliseconds is not None and not options.modes:
        show_model(options, options.step_milliseconds / 1e3, size)
        print("nothing was measured, and nothing written")
        return
    manifest = prepared_data(options.data_dir)
    report = Report("scaling", QUESTION, vars(options) | {"network": None, "dataset": manifest.dataset})
    with work_folder() as folder:
        runs = measure(options, manifest, folder)
    steps = [options.batch_size / run.images_per_second for run in runs["one process"]]
    if options.step_milliseconds is not None:
        steps = [options.step_milliseconds / 1e3] * len(steps)
    predictions = show_model(options, statistics.median(steps), size)
    report.configuration["model"] = {"bytes_reduced": size, "rows": [asdict(row) for row in predictions]}
    report.finish(figures(runs), options.output)


# ---- measured ------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> dict[str, list[Started]]:
    """Return the runs of one process and of each mode, one a repeat, back and forth."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    commands = {"one process": ["train", "--num-intra-threads", "2", *flags]}
    for name in options.modes:
        mode = MODES[name]
        train = ["train", "--num-intra-threads", "1", *mode.train, *flags]
        commands[name] = ["cluster", "local", *mode.cluster, "--", *train]
    runs: dict[str, list[Started]] = {name: [] for name in commands}
    for repeat in range(options.repeats):
        for name in list(commands) if repeat % 2 == 0 else list(commands)[::-1]:
            place = folder / f"{name.replace(' ', '-')}-{repeat}"
            runs[name].append(measure_run(commands[name], place, options))
        told = ", ".join(
            f"{name} {values[-1].images_per_second:.0f} (start {values[-1].start_seconds:.1f} s)"
            for name, values in runs.items()
        )
        print(f"repeat {repeat + 1}/{options.repeats}, images/s: {told}", flush=True)
    return runs


def measure_run(arguments: Sequence[str], place: Path, options: argparse.Namespace) -> Started:
    """Run a ``labkit`` command, a training in ``place``, for as many steps as are asked for; then end it.

    Raises RuntimeError with the end of its output where it ends before that or stands still.
    """
    run, log = RunDirectory(place), place.with_suffix(".log")
    with open(log, "wb") as output:
        started = time.time()  # of the same clock as the rows' wall_time
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit", *arguments, "--job-dir", str(place)],
            stdout=output,
            stderr=output,
            cwd=ROOT,
        )
    try:
        rows = _rows_until(run, options.warmup_steps + options.steps + 1, process, log)
    finally:
        _end(process)
    speed = images_per_second(rows[options.warmup_steps :], options.batch_size)
    return Started(rows[0]["wall_time"] - started, speed)


def _rows_until(run: RunDirectory, count: int, process: subprocess.Popen, log: Path) -> list[dict[str, Any]]:
    reader = MetricsReader(run.metrics_path, splits=("train",))
    seen, give_up = 0, time.monotonic() + SECONDS_TO_START
    while True:
        reader.poll()
        if len(reader.rows) >= count:
            return reader.rows[:count]
        if len(reader.rows) > seen:
            seen, give_up = len(reader.rows), time.monotonic() + SECONDS_WITHOUT_A_STEP
        if process.poll() is not None or time.monotonic() > give_up:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(
                f"no step {seen + 1}; exit code {process.returncode}; the end of the output:\n{tail}"
            )
        time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
    """End a training or a launcher, which ends its tasks; nothing outlives this."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        try:
            process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def images_per_second(rows: Sequence[dict[str, Any]], batch_size: int) -> float:
    """Return the speed over all steps between the rows: everything counts. The rows may be in any order."""
    steps, times = ([row[name] for row in rows] for name in ("step", "wall_time"))
    return (max(steps) - min(steps)) * batch_size / (max(times) - min(times))


def figures(runs: dict[str, list[Started]]) -> list[Figure]:
    """Return each mode's ratios to one process, repeat by repeat, then what they are made of."""
    alone = runs["one process"]
    ratios, absolute = [], []
    for name, values in runs.items():
        words = MODES[name].words if name in MODES else name
        if name in MODES:
            pairs = list(zip(values, alone, strict=True))
            speeds = tuple(ours.images_per_second / one.images_per_second for ours, one in pairs)
            starts = tuple(ours.start_seconds / one.start_seconds for ours, one in pairs)
            goal = START_GOAL if name == "sync" else None
            ratios.append(Figure(f"{words} over one process, speed", "x", speeds, MODES[name].goal))
            ratios.append(Figure(f"{words} over one process, start to first step", "x", starts, goal))
        absolute.append(Figure(words, "images/s", tuple(value.images_per_second for value in values)))
        absolute.append(Figure(f"{words}, start", "s", tuple(value.start_seconds for value in values)))
    return [*ratios, *absolute]


# ---- modelled ------------------------------------------------------------------------------------------


def reduced_bytes(num_layers: int) -> int:
    """Return what a step of the ResNet reduces: gradients and batch statistics, four bytes each."""
    import_tensorflow()
    from labkit.config import Config
    from labkit.models.registry import build_model

    config = Config.from_flat({"num_layers": num_layers})
    model = build_model(config.model, num_classes=10, image_shape=(32, 32, 3))
    return 4 * sum(math.prod(weight.shape) for weight in model.weights)


def show_model(options: argparse.Namespace, seconds: float, size: float) -> list[Prediction]:
    """Print the table of the model, which says that it is one; return its rows."""
    networks = options.network or NETWORKS
    predictions = predict(seconds, size, networks, per_node=options.gpus_per_node)
    print_model(predictions, seconds, size, options.batch_size)
    links = [NVLINK, *networks]
    told = "; ".join(
        f"{link.name}: {link.bandwidth / 1e9:g} GB/s, {link.latency * 1e6:g} µs" for link in links
    )
    print(f"assumed: {told}; within a node {NVLINK.name}, between nodes one port each\n", flush=True)
    return predictions


def print_model(predictions: Sequence[Prediction], seconds: float, size: float, batch_size: int) -> None:
    """Print a row a network, a column a number of devices: efficiency without and with overlap."""
    table = Table(
        title=f"A model, not a measurement: efficiency of N devices, {batch_size} examples each, "
        f"{seconds * 1e3:.4g} ms a step on one, {size / 1e6:.3g} MB reduced a step; "
        "without / with overlap of reduction and backward pass",
        title_justify="left",
    )
    table.add_column("network", overflow="fold")
    for count in DEVICES:
        table.add_column(str(count), justify="right", no_wrap=True)
    for name in dict.fromkeys(row.network for row in predictions):
        cells = {row.devices: row for row in predictions if row.network == name}
        table.add_row(name, *(_cell(cells.get(count)) for count in DEVICES))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _cell(row: Prediction | None) -> str:
    return "" if row is None else f"{row.efficiency:.0%} / {row.efficiency_with_overlap:.0%}"


if __name__ == "__main__":
    main()
