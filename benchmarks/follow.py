"""Is training as fast with a separate evaluation on another core as it is alone?

`labkit train` is pinned to one core and `labkit evaluate --watch` to another one. The training's speed is
measured over some steps at a time, in turns with the evaluation paused and with the evaluation working on new
checkpoints. The time for writing checkpoints is included in both.
"""

import argparse
import functools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.common import at_least, make_parser, measure_and_report, take_turns
from benchmarks.processes import LABKIT, SECONDS_TO_START, Process, Training, train_command
from benchmarks.report import Figure, Goal, ratios
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import evaluations_path

# Close to 1: two cores share memory bandwidth, the last-level cache and their clock.
GOAL = Goal("at least", 0.97)
BUSY_GOAL = Goal("at least", 80.0)  # an idle evaluation would make the result meaningless


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, steps=16, warmup_steps=10)
    parser.add_argument("--checkpoint-every-steps", type=at_least(1), default=4, help="of the training")
    parser.add_argument(
        "--cores", type=int, nargs=2, help="of the training and of the follower (default: the first two)"
    )
    options = parser.parse_args(arguments)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    options.cores = options.cores or allowed[:2]
    if len(set(options.cores)) < 2 or not set(options.cores) <= set(allowed):
        parser.error(f"two cores are needed to pin processes to; given {options.cores}, allowed {allowed}")
    measure_and_report("follow", __doc__, options, measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Measure the training's speed alone and beside the evaluation, and how busy that is meanwhile."""
    command = train_command(
        options,
        manifest,
        checkpoint_every_steps=options.checkpoint_every_steps,
        keep_checkpoints=1000,
        num_intra_threads=1,
    )
    busy: list[float] = []
    training_core, follower_core = options.cores
    with ExitStack() as stack:
        with pinned(training_core):
            training = stack.enter_context(Training(folder, command))
        training.start(max(options.warmup_steps, options.checkpoint_every_steps + 1))
        with pinned(follower_core):
            follower = stack.enter_context(Following(training.run, folder))
        follower.start()

        speed = functools.partial(training.speed, options.steps, options.batch_size)

        def speed_beside() -> float:
            with follower.at_work(busy):
                return speed()

        alone, beside = take_turns({"alone": speed, "beside": speed_beside}, options.repeats).values()
    return figures(alone, beside, busy)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin processes that are started in the block, with all their threads, to ``core``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Following(Process):
    """``labkit evaluate --watch`` in a separate process, paused except in its turns."""

    def __init__(self, run: RunDirectory, folder: Path) -> None:
        self._rows = evaluations_path(run.metrics_path)
        # The training is paused most of the time, which the evaluation sees as a stalled run.
        options = ("--num-intra-threads", "1", "--wait-seconds", "1000000")
        super().__init__([LABKIT, "evaluate", str(run.path), "--watch", *options], folder / "follow.log")

    def start(self) -> None:
        """Wait for the first row, when the model is built and its graph traced, then pause."""

        def evaluated() -> bool:
            return self._rows.exists() and self._rows.stat().st_size > 0

        self.wait_until(evaluated, "checkpoint was evaluated", SECONDS_TO_START)
        self.pause()

    @contextmanager
    def at_work(self, busy: list[float]) -> Iterator[None]:
        """Resume it within the block. ``busy`` gets its CPU per cent of that time."""
        used, started = self.cpu_seconds(), time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        yield
        if self.process.poll() is not None:
            raise self.failure("labkit evaluate --watch ended")
        busy.append(100.0 * (self.cpu_seconds() - used) / (time.perf_counter() - started))
        self.pause()


def figures(alone: list[float], beside: list[float], busy: list[float]) -> list[Figure]:
    """Return the ratio of each repeat, then the speeds and the evaluation's CPU per cent."""
    return [
        Figure("training beside a follower over training alone", "x", ratios(beside, alone), GOAL),
        Figure("training alone", "images/s", alone),
        Figure("training beside a follower", "images/s", beside),
        Figure("the follower's core, in use", "%", busy, BUSY_GOAL),
    ]


if __name__ == "__main__":
    main()
