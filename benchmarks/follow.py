"""Is training as fast with a separate evaluation on another core as it is alone?

`labkit train` is pinned to one core and `labkit evaluate --watch` to another one. The training's speed is
measured over some steps at a time, in turns with the evaluation paused and with the evaluation working on new
checkpoints. The time for writing checkpoints is included in both.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil

from benchmarks.common import ROOT, at_least, make_parser, prepared_data, work_folder
from benchmarks.processes import Training, train_flags, train_images_per_second
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import evaluations_path

QUESTION = "Is a training as fast beside a separate evaluation, on a core of its own, as it is alone?"
# Close to 1: two cores share memory bandwidth, the last-level cache and their clock.
GOAL = Goal("at least", 0.97)
BUSY_GOAL = Goal("at least", 80.0)  # an idle evaluation would make the result meaningless
SECONDS_TO_START = 300.0


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=16, help="steps of a turn")
    parser.add_argument("--warmup-steps", type=at_least(1), default=10, help="steps before the first turn")
    parser.add_argument("--checkpoint-every-steps", type=at_least(1), default=4, help="of the training")
    parser.add_argument(
        "--cores", type=int, nargs=2, help="of the training and of the follower (default: the first two)"
    )
    options = parser.parse_args(arguments)
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    options.cores = options.cores or allowed[:2]
    if len(set(options.cores)) < 2 or not set(options.cores) <= set(allowed):
        parser.error(f"two cores are needed to pin processes to; given {options.cores}, allowed {allowed}")
    manifest = prepared_data(options.data_dir)
    report = Report("follow", QUESTION, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        alone, beside, busy = measure(options, manifest, folder)
    report.finish(figures(alone, beside, busy), options.output)


def measure(
    options: argparse.Namespace, manifest: Manifest, folder: Path
) -> tuple[list[float], list[float], list[float]]:
    """Return per repeat images/s alone and beside the evaluation, and the evaluation's CPU per cent."""
    flags = train_flags(manifest, num_layers=options.num_layers, batch_size=options.batch_size)
    flags += ["--checkpoint-every-steps", str(options.checkpoint_every_steps)]
    flags += ["--keep-checkpoints", "1000", "--num-intra-threads", "1"]
    alone: list[float] = []
    beside: list[float] = []
    busy: list[float] = []
    training_core, follower_core = options.cores
    with ExitStack() as stack:
        with pinned(training_core):
            training = stack.enter_context(Training(folder, flags))
        training.start(max(options.warmup_steps, options.checkpoint_every_steps + 1))
        with pinned(follower_core):
            follower = stack.enter_context(Following(training.run, folder))
        follower.start()

        def turn_alone() -> None:
            alone.append(train_images_per_second(training.turn(options.steps), options.batch_size))

        def turn_beside() -> None:
            with follower.at_work() as taken:
                rows = training.turn(options.steps)
            beside.append(train_images_per_second(rows, options.batch_size))
            busy.extend(taken)

        for repeat in range(options.repeats):
            for turn in (turn_alone, turn_beside) if repeat % 2 == 0 else (turn_beside, turn_alone):
                turn()
            line = f"alone {alone[-1]:.0f}, beside {beside[-1]:.0f}, follower busy {busy[-1]:.0f} %"
            print(f"repeat {repeat + 1}/{options.repeats}, images/s: {line}", flush=True)
    return alone, beside, busy


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin processes that are started in the block, with all their threads, to ``core``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Following:
    """``labkit evaluate --watch`` in a separate process, paused except in its turns."""

    def __init__(self, run: RunDirectory, folder: Path) -> None:
        self._rows = evaluations_path(run.metrics_path)
        self._log = folder / "follow.log"
        command = [sys.executable, "-m", "labkit", "evaluate", str(run.path), "--watch"]
        # The training is paused most of the time, which the evaluation sees as a stalled run.
        command += ["--num-intra-threads", "1", "--wait-seconds", "1000000"]
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Wait for the first row, when the model is built and its graph traced, then pause."""
        give_up = time.monotonic() + SECONDS_TO_START
        while not (self._rows.exists() and self._rows.stat().st_size):
            self._check()
            if time.monotonic() > give_up:
                raise RuntimeError(f"no checkpoint was evaluated in {SECONDS_TO_START:.0f} s{self._tail()}")
            time.sleep(0.1)
        os.kill(self._process.pid, signal.SIGSTOP)

    @contextmanager
    def at_work(self) -> Iterator[list[float]]:
        """Resume it within the block. The list gets its CPU per cent of that time."""
        taken: list[float] = []
        self._check()
        used, started = self._cpu_seconds(), time.perf_counter()
        os.kill(self._process.pid, signal.SIGCONT)
        yield taken
        self._check()
        taken.append(100.0 * (self._cpu_seconds() - used) / (time.perf_counter() - started))
        os.kill(self._process.pid, signal.SIGSTOP)

    def _cpu_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"labkit evaluate --watch ended with {self._process.returncode}{self._tail()}")

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-15:]
        return "; the end of its log:\n" + "\n".join(lines)


def figures(alone: list[float], beside: list[float], busy: list[float]) -> list[Figure]:
    """Return the ratio of each repeat, then the speeds and the evaluation's CPU per cent."""
    ratios = tuple(with_it / without for with_it, without in zip(beside, alone, strict=True))
    return [
        Figure("training beside a follower over training alone", "x", ratios, GOAL),
        Figure("training alone", "images/s", tuple(alone)),
        Figure("training beside a follower", "images/s", tuple(beside)),
        Figure("the follower's core, in use", "%", tuple(busy), BUSY_GOAL),
    ]


if __name__ == "__main__":
    main()
