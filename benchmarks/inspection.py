"""Which share of a run does it cost to look inside its steps?

One process makes the steps of all sides in rounds: a plain step and one of each variant, in random order,
each with a network of its own, the same batch, and the callbacks that belong to it. Every step of a variant
does what in a run only every so many do. The first step of each side, which compiles, is reported by itself.
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import make_parser, measure_and_report
from benchmarks.report import Figure, Goal
from benchmarks.turns import network_on_cpu
from labkit.callbacks.builtin import builtin_callbacks
from labkit.callbacks.callback import Callback, TrainingView
from labkit.callbacks.calls import Calls
from labkit.data.manifest import Manifest
from labkit.distributed.synchronous import SynchronousEngine
from labkit.run_directory import RunDirectory


@dataclass(frozen=True)
class Variant:
    """What is measured beside the plain step.

    Args:
        fields: configuration with which every step costs what is measured.
        every: in a run, every so many steps cost it.
        callbacks: called beside those of ``fields``.
        goal: for the share of a run, in percent.
        changes_step: whether the step itself takes longer, beside the callbacks.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    callbacks: tuple[Callback, ...] = ()
    goal: Goal | None = None
    changes_step: bool = False


class Nothing(Callback):
    """Overrides every method that is called at a step, and does nothing."""

    def before_step(self, training: TrainingView, step: int) -> None:
        return None

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        return None


VARIANTS = {
    "--inspect-every-steps 50": Variant(
        {"inspect_every_steps": 1}, every=50, goal=Goal("at most", 3.0), changes_step=True
    ),
    "--check-numerics": Variant({"check_numerics": True}, changes_step=True),
    "--write-graph": Variant({"write_graph": True}),
    "three callbacks that do nothing": Variant(
        callbacks=(Nothing(), Nothing(), Nothing()), goal=Goal("at most", 0.2)
    ),
}


def main(arguments: list[str] | None = None) -> None:
    options = make_parser(__doc__, steps=10).parse_args(arguments)
    options.precision = "float32"
    measure_and_report("inspection", __doc__, options, measure)


class Side:
    """Makes the steps of one side."""

    def __init__(self, options: argparse.Namespace, variant: Variant, folder: Path) -> None:
        fields = {"num_layers": options.num_layers, "train_batch_size": options.batch_size}
        network = network_on_cpu(options, {**fields, **variant.fields})
        run = RunDirectory(folder)
        run.create()
        # The first one stands for labkit's progress, as in a run.
        callbacks = [Callback(), *builtin_callbacks(network.config.run), *variant.callbacks]
        self._calls = Calls(
            callbacks, TrainingView(network, run, keep_state=print), heartbeat=print, say=print
        )
        self._engine = SynchronousEngine(network.steps, itertools.repeat(network.batch(0)), step=0)
        started = time.perf_counter()
        self._calls.on_start()
        self.seconds_at_start = time.perf_counter() - started
        self.calls: list[float] = []  # seconds in callbacks, by step

    def seconds(self) -> float:
        """Make one step. Returns its wall time, the callbacks' included."""
        started = time.perf_counter()
        self._calls.before_step(len(self.calls) + 1)
        called = time.perf_counter() - started
        result = self._engine.next_step()
        self._calls.training.observation = result.observation
        row = {"split": "train", "step": result.step, "wall_time": time.time(), **result.metrics}
        before = time.perf_counter()
        self._calls.after_step(row)
        self.calls.append(called + time.perf_counter() - before)
        if self._calls.failure:
            raise RuntimeError(self._calls.failure)
        return time.perf_counter() - started

    def close(self) -> None:
        self._calls.on_end("finished")


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Make the steps of all sides in turn."""
    options.dataset = manifest.dataset
    variants = {"plain step": Variant(), **VARIANTS}
    sides = {
        name: Side(options, variant, folder / str(index))
        for index, (name, variant) in enumerate(variants.items())
    }
    first = [Figure(f"{name}: first step", "s", [side.seconds()]) for name, side in sides.items()]
    start = [
        Figure(f"{name}: before the first step", "s", [side.seconds_at_start]) for name, side in sides.items()
    ]
    steps: dict[str, list[list[float]]] = {name: [] for name in sides}
    calls: dict[str, list[list[float]]] = {name: [] for name in sides}
    order, shuffled = list(sides), random.Random(0)
    for _ in range(options.repeats):
        rounds = []
        for _ in range(options.steps):
            shuffled.shuffle(order)  # a step may be slower behind one that has used more memory
            rounds.append({name: sides[name].seconds() for name in order})
        for name, found in steps.items():
            found.append([seconds[name] for seconds in rounds])
            calls[name].append(sides[name].calls[-options.steps :])
        medians = (f"{name} {statistics.median(found[-1]) * 1e3:.0f} ms" for name, found in steps.items())
        print(", ".join(medians), flush=True)
    for side in sides.values():
        side.close()
    return [*figures(steps, calls), *first, *start]


def figures(steps: dict[str, list[list[float]]], calls: dict[str, list[list[float]]]) -> list[Figure]:
    """Return each variant's share of a run, then the times of the steps.

    ``steps`` and ``calls``: seconds of each side's steps and of their callbacks, a list for each repeat.

    A repeat counts with the median of its rounds. For a variant that changes the step itself: what a round's
    step takes more than its plain step, as a share of the plain step. For the others: the time of their
    callbacks, which is less than the noise of the steps, as a share of the plain step.
    """
    plain = steps["plain step"]
    shares = []
    for name, variant in VARIANTS.items():
        if name not in steps:
            continue
        if variant.changes_step:
            more = [
                statistics.median(one / other - 1 for one, other in zip(mine, theirs, strict=True))
                for mine, theirs in zip(steps[name], plain, strict=True)
            ]
        else:
            more = [
                statistics.median(called) / statistics.median(taken)
                for called, taken in zip(calls[name], plain, strict=True)
            ]
        share = [100 * x / variant.every for x in more]
        shares.append(Figure(f"{name}, of a run", "%", share, variant.goal))
    times = [
        Figure(f"{name}: one such step", "ms", [1e3 * statistics.median(found) for found in repeats])
        for name, repeats in steps.items()
    ]
    return shares + times


if __name__ == "__main__":
    main()
