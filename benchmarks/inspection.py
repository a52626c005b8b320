"""Which share of a run does it cost to look inside its steps?

One process makes the steps of all sides in turn: a plain step, then one of each variant, each with a network
of its own, the same batch, and the callbacks that belong to it. Every step of a variant does what in a run
only every so many do. The first step of each side, which compiles, is reported by itself.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from benchmarks.common import at_least, make_parser, prepared_data, work_folder
from benchmarks.report import Figure, Goal, Report
from benchmarks.turns import session_on_cpu
from labkit.callbacks.callback import Callback
from labkit.callbacks.calls import Calls
from labkit.callbacks.own import own_callbacks
from labkit.callbacks.training import Training
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.training.step import SynchronousEngine

QUESTION = "Does --inspect-every-steps 50 cost at most 3 % of a run?"


@dataclass(frozen=True)
class Variant:
    """What is measured beside the plain step.

    Args:
        fields: configuration with which every step costs what is measured.
        every: in a run, every so many steps cost it.
        callbacks: called beside those of ``fields``.
        goal: for the share of a run, in percent.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    callbacks: tuple[Callback, ...] = ()
    goal: Goal | None = None


VARIANTS = {
    "--inspect-every-steps 50": Variant({"inspect_every_steps": 1}, every=50, goal=Goal("at most", 3.0)),
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=10, help="steps of each side in a repeat")
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    options.dataset, options.precision = manifest.dataset, "float32"
    report = Report("inspection", QUESTION, vars(options))
    with work_folder() as folder:
        found = measure(options, manifest, folder)
    report.finish(figures(*found), options.output)


class Side:
    """Makes the steps of one side."""

    def __init__(self, options: argparse.Namespace, variant: Variant, folder: Path) -> None:
        fields = {"num_layers": options.num_layers, "train_batch_size": options.batch_size}
        session = session_on_cpu(options, {**fields, **variant.fields})
        run = RunDirectory(folder)
        run.create()
        callbacks = [*own_callbacks(session.config.run), *variant.callbacks]
        self._calls = Calls(callbacks, Training(session, run), beat=print, say=print)
        self._engine = SynchronousEngine(
            session, itertools.repeat(session.batch(0)), step=0, stopping=lambda: False, name="worker:0"
        )
        self._step = 0
        self._calls.on_start()

    def seconds(self) -> float:
        """Make one step. Returns its wall time, the callbacks' included."""
        started = time.perf_counter()
        self._step += 1
        self._calls.before_step(self._step)
        result = self._engine.next_step()
        self._calls.training.observation = result.observation
        row = {"split": "train", "step": result.step, "wall_time": time.time(), **result.metrics}
        self._calls.after_step(row)
        if self._calls.failure:
            raise RuntimeError(self._calls.failure)
        return time.perf_counter() - started

    def close(self) -> None:
        self._calls.on_end("finished")


def measure(
    options: argparse.Namespace, manifest: Manifest, folder: Path
) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Return the seconds of each side's first step, and of its other steps, one list per repeat."""
    variants = {"plain step": Variant(), **VARIANTS}
    sides = {
        name: Side(options, variant, folder / str(index))
        for index, (name, variant) in enumerate(variants.items())
    }
    first = {name: side.seconds() for name, side in sides.items()}
    steps: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        rounds = [{name: side.seconds() for name, side in sides.items()} for _ in range(options.steps)]
        for name, found in steps.items():
            found.append([seconds[name] for seconds in rounds])
        medians = (f"{name} {statistics.median(found[-1]) * 1e3:.0f} ms" for name, found in steps.items())
        print(", ".join(medians), flush=True)
    for side in sides.values():
        side.close()
    return first, steps


def figures(first: Mapping[str, float], steps: Mapping[str, list[list[float]]]) -> list[Figure]:
    """Return each variant's share of a run, then the times of the steps.

    A repeat counts with the median of its rounds: what a round's step of the variant takes more than its
    plain step, as a share of the plain step.
    """
    plain = steps["plain step"]
    shares = []
    for name, variant in VARIANTS.items():
        more = [
            statistics.median(one / other - 1 for one, other in zip(mine, theirs, strict=True))
            for mine, theirs in zip(steps[name], plain, strict=True)
        ]
        shares.append(
            Figure(f"{name}, of a run", "%", tuple(100 * x / variant.every for x in more), variant.goal)
        )
    times = [
        Figure(f"{name}: one such step", "ms", tuple(1e3 * statistics.median(found) for found in repeats))
        for name, repeats in steps.items()
    ]
    return [*shares, *times, *(Figure(f"{name}: first step", "s", (taken,)) for name, taken in first.items())]


if __name__ == "__main__":
    main()
