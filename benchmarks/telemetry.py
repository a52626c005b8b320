"""Which share of a training step do metrics, events and status cost?

Rows of a real training are recorded again through `labkit.training.telemetry`, with a status file at every
step (a training writes one every half second at most). The cost is the time that the loop waits plus the CPU
time of the event writer's thread. Between two rows the CPU's caches are overwritten, as a step would do. The
step itself is measured with `labkit train`, which takes turns with this process.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.common import at_least, make_parser, measure_and_report
from benchmarks.processes import Row, Training, train_command
from benchmarks.report import Figure, Goal, ratios
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.tensorboard.events import EventWriter
from labkit.training.telemetry import Pace, Telemetry

GOAL = Goal("at most", 1.0)
OVERWRITTEN_BYTES = 64 * 2**20  # more than two cores' share of the last-level cache

TELEMETRY = "metrics, events and status"
EVENTS = "events alone"
SUMMARIES = "the same floats through tf.summary.scalar"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=16, warmup_steps=10)
    parser.add_argument("--rows", type=at_least(1), default=100, help="rows recorded in a turn")
    measure_and_report("telemetry", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure the seconds of a training step and of each way to record one, in turns."""
    command = train_command(options, manifest)
    ways = {TELEMETRY: seconds_of_telemetry, EVENTS: seconds_of_events, SUMMARIES: seconds_of_summaries}
    steps: list[float] = []
    costs: dict[str, list[float]] = {name: [] for name in ways}
    with Training(folder / "labkit", command) as training:
        training.start(options.warmup_steps)
        for repeat in range(options.repeats):
            rows = training.turn(options.steps)
            steps.append((rows[-1]["wall_time"] - rows[0]["wall_time"]) / options.steps)
            for index, (name, seconds_of) in enumerate(ways.items()):
                costs[name].append(seconds_of(rows, options.rows, folder / f"{repeat}-{index}"))
            line = ", ".join(f"{name} {values[-1] * 1e3:.3f} ms" for name, values in costs.items())
            print(f"repeat {repeat + 1}/{options.repeats}: step {steps[-1] * 1e3:.0f} ms, {line}", flush=True)
    return figures(steps, costs)


def seconds_of_telemetry(rows: list[Row], count: int, folder: Path) -> float:
    """Return the seconds that one row costs through ``Telemetry.train_row``, with a status for each row."""
    run = RunDirectory(folder)
    run.create()
    write_json_atomic(run.config_path, Config().to_json())
    telemetry = Telemetry(run, total_steps=count, first_step=0, resumed=False)
    pace = Pace(128, lambda step: (0.0, 0))

    def record(row: Row) -> None:
        # One second after the last status, so that a status is written for every row.
        telemetry.train_row(row | {"wall_time": time.time() + 1.0}, pace)

    return _seconds_per_row(record, rows, count, telemetry.close)


def seconds_of_events(rows: list[Row], count: int, folder: Path) -> float:
    """Return the seconds that one row costs through ``EventWriter.scalars`` alone."""
    writer = EventWriter(folder, 1)
    return _seconds_per_row(writer.scalars, rows, count, writer.close)


def seconds_of_summaries(rows: list[Row], count: int, folder: Path) -> float:
    """Return the seconds that the same values cost through eager ``tf.summary.scalar``."""
    writer = tf.summary.create_file_writer(str(folder))

    def record(row: Row) -> None:
        with writer.as_default(step=row["step"]):
            for name, value in row.items():
                if isinstance(value, float) and name not in ("wall_time", "epoch"):
                    tf.summary.scalar(f"train/{name}", value)

    return _seconds_per_row(record, rows, count, writer.close)


def _seconds_per_row(
    record: Callable[[Row], None], rows: list[Row], count: int, close: Callable[[], None]
) -> float:
    """Return per row the wall time of ``record`` plus the CPU time of all other threads, in seconds."""
    overwritten = np.zeros(OVERWRITTEN_BYTES, np.uint8)
    record(rows[0])  # the first call opens files and fills caches
    waited = 0.0
    others = time.process_time() - time.thread_time()
    for index in range(count):
        overwritten += 1
        row = rows[index % len(rows)] | {"step": index + 1}
        started = time.perf_counter()
        record(row)
        waited += time.perf_counter() - started
    close()
    others = time.process_time() - time.thread_time() - others
    return (waited + others) / count


def figures(steps: list[float], costs: dict[str, list[float]]) -> list[Figure]:
    """Return each way's share of a step, with the goal for the whole telemetry, then the absolute times."""
    shares = [
        Figure(f"{name}, of a step", "%", ratios(cost, steps, 100.0), GOAL if name == TELEMETRY else None)
        for name, cost in costs.items()
    ]
    times = {**costs, "training step": steps}
    return [*shares, *(Figure(name, "ms", [1e3 * value for value in times[name]]) for name in times)]


if __name__ == "__main__":
    main()
