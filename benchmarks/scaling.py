"""How fast are two workers on this machine, and how long do they take to start?

`labkit cluster local` with two workers of one thread each is compared with one process of two threads: fresh
processes in turn, with the same global batch.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import make_parser, measure_and_report, take_turns
from benchmarks.processes import Training, images_per_second, train_command
from benchmarks.report import Figure, Goal, ratios
from labkit.data.manifest import Manifest

START_GOAL = Goal("at most", 1.5)


# The modes of two workers, each with the goal of its speed.
MODES = {"sync": Goal("at least", 0.85), "async": Goal("at least", 0.9)}


@dataclass(frozen=True)
class Started:
    """One run: seconds from the command to the end of the first step, and speed after the warm-up."""

    start_seconds: float
    images_per_second: float

    def __str__(self) -> str:
        return f"{self.images_per_second:.0f} images/s (start {self.start_seconds:.1f} s)"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=24, warmup_steps=6)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="clusters to measure")
    measure_and_report("scaling", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure one process and each mode in turn."""
    commands = {"one process": train_command(options, manifest, num_intra_threads=2)}
    for name in options.modes:
        cluster = ["cluster", "local", "--workers", "2", "--ps", str(int(name == "async")), "--"]
        train = train_command(options, manifest, num_intra_threads=1, sync=name == "sync")
        commands[name] = [*cluster, *train]
    numbers = itertools.count()
    turns = {
        name: lambda command=command: measure_run(command, folder / str(next(numbers)), options)
        for name, command in commands.items()
    }
    return figures(take_turns(turns, options.repeats, str))


def measure_run(arguments: Sequence[str], folder: Path, options: argparse.Namespace) -> Started:
    """Run a ``labkit`` command that trains in ``folder`` for the requested number of steps, then end it."""
    count = options.warmup_steps + options.steps + 1
    with Training(folder, arguments) as training:
        rows = training.wait_for_rows(lambda rows: len(rows) >= count)
    speed = images_per_second(rows[options.warmup_steps : count], options.batch_size)
    return Started(rows[0]["wall_time"] - training.started, speed)


def figures(runs: dict[str, list[Started]]) -> list[Figure]:
    """Return each mode's ratios to one process for every repeat, then the absolute values."""
    speeds = {name: [run.images_per_second for run in each] for name, each in runs.items()}
    starts = {name: [run.start_seconds for run in each] for name, each in runs.items()}
    alone = "one process"
    compared, absolute = [], []
    for name in runs:
        label = f"two {name} workers" if name in MODES else name
        if name in MODES:
            speed, start = ratios(speeds[name], speeds[alone]), ratios(starts[name], starts[alone])
            goal = START_GOAL if name == "sync" else None
            compared.append(Figure(f"{label} over one process, speed", "x", speed, MODES[name]))
            compared.append(Figure(f"{label} over one process, start to first step", "x", start, goal))
        absolute.append(Figure(label, "images/s", speeds[name]))
        absolute.append(Figure(f"{label}, start", "s", starts[name]))
    return [*compared, *absolute]


if __name__ == "__main__":
    main()
