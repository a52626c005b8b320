"""How fast do quick commands start, and how much memory does a ResNet-20 run take?

Every value comes from a new process: `labkit --help`; `labkit data prepare` on data that is already prepared;
and a short run with training, validation, checkpoints and test, whose resident memory is sampled.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import ROOT, at_least, cifar10_archive, make_parser, prepared_data, work_folder
from benchmarks.report import Figure, Goal, Report
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader

QUESTION = "Do quick commands answer at once, and does a ResNet-20 run stay under 1.5 GB?"
HELP_GOAL = Goal("below", 0.4)
PREPARE_GOAL = Goal("below", 1.0)
MEMORY_GOAL = Goal("below", 1.5)
LABKIT = Path(sys.executable).parent / "labkit"
SETTLED_AFTER_STEP = 10  # the step is compiled and the buffers are full


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--train-steps", type=at_least(20), default=60, help="steps of the run that is watched"
    )
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    report = Report("startup", QUESTION, vars(options) | {"dataset": manifest.dataset})
    with work_folder() as folder:
        helped = [seconds_of(["--help"], folder) for _ in range(options.repeats)]
        prepared = seconds_of_second_prepare(options.repeats, folder)
        runs = [
            watch_memory(run_flags(manifest, options), folder / f"run{index}")
            for index in range(options.repeats)
        ]
    report.finish(figures(helped, prepared, runs), options.output)


def seconds_of(arguments: Sequence[str], folder: Path) -> float:
    """Return the wall time of a ``labkit`` command. Raises RuntimeError with its output if it fails."""
    log = folder / "command.log"
    with open(log, "wb") as output:
        started = time.perf_counter()
        code = subprocess.call([LABKIT, *arguments], stdout=output, stderr=output, cwd=ROOT)
        seconds = time.perf_counter() - started
    _check(code, arguments, log)
    return seconds


def _check(code: int, arguments: Sequence[str], log: Path) -> None:
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"labkit {' '.join(arguments)} ended with {code}:\n{tail}")


def seconds_of_second_prepare(repeats: int, folder: Path) -> list[float]:
    """Prepare a data set and time the second call: CIFAR-10 if LABKIT_CIFAR10 is set, else shapes."""
    archive = cifar10_archive()
    source = ["--dataset", "cifar10", "--archive", str(archive)] if archive else ["--dataset", "shapes"]
    arguments = ["data", "prepare", "--data-dir", str(folder / "data"), *source]
    seconds_of(arguments, folder)
    return [seconds_of(arguments, folder) for _ in range(repeats)]


def run_flags(manifest: Manifest, options: argparse.Namespace) -> list[str]:
    """Return the flags of a short run with everything that a run does."""
    return [
        *("train", "--preset", "resnet20_one_cycle", "--num-layers", str(options.num_layers)),
        *("--train-batch-size", str(options.batch_size), "--train-steps", str(options.train_steps)),
        *("--dataset", manifest.dataset, "--data-dir", str(manifest.directory.parent), "--num-gpus", "0"),
        *("--validate-every-steps", str(options.train_steps // 2)),
    ]


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process in GB (10^9 bytes): its peak, and the median while it trained."""

    peak: float
    steady: float


def watch_memory(arguments: Sequence[str], folder: Path) -> Memory:
    """Run ``labkit`` with a run directory in ``folder``; return the memory that it used.

    The peak is reported by the kernel. Raises RuntimeError if the run fails or is too short.
    """
    folder.mkdir()
    run = RunDirectory(folder / "run")
    reader = MetricsReader(run.metrics_path)
    log = folder / "train.log"
    samples = []
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [LABKIT, *arguments, "--job-dir", str(run.path)], stdout=output, stderr=output, cwd=ROOT
        )
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if run.path.exists():
            reader.poll()
        if len(reader.rows) >= SETTLED_AFTER_STEP:
            samples.append(psutil.Process(process.pid).memory_info().rss)
        time.sleep(0.1)
    process.returncode = os.waitstatus_to_exitcode(status)
    _check(process.returncode, arguments, log)
    if not samples:
        raise RuntimeError(f"labkit {' '.join(arguments)} ended before step {SETTLED_AFTER_STEP}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, see getrusage(2)
    return Memory(usage.ru_maxrss * unit / 1e9, statistics.median(samples) / 1e9)


def figures(helped: list[float], prepared: list[float], runs: list[Memory]) -> list[Figure]:
    """Return the figures, all with goals."""
    return [
        Figure("labkit --help", "s", tuple(helped), HELP_GOAL),
        Figure("second labkit data prepare", "s", tuple(prepared), PREPARE_GOAL),
        Figure("resident memory of a run, peak", "GB", tuple(run.peak for run in runs), MEMORY_GOAL),
        Figure("resident memory of a run, median", "GB", tuple(run.steady for run in runs), MEMORY_GOAL),
    ]


if __name__ == "__main__":
    main()
