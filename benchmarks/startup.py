"""How fast do quick commands and a training start, and how much memory does a ResNet-20 run take?

Every value comes from a new process: `labkit --help`; `labkit data prepare` on data that is already prepared;
`import tensorflow`; and a short run with training, validation, checkpoints and test, whose first step is
waited for and whose resident memory is sampled.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import at_least, cifar10_archive, make_parser, measure_and_report
from benchmarks.processes import LABKIT, Training, run
from benchmarks.report import Figure, Goal
from labkit.data.manifest import Manifest

HELP_GOAL = Goal("below", 0.4)
PREPARE_GOAL = Goal("below", 1.0)
FIRST_STEP_GOAL = Goal("below", 4.0)
NEXT_START_GOAL = Goal("below", 2.0)
MEMORY_GOAL = Goal("below", 1.5)
PLAIN_IMPORT = "import tensorflow"
# As a command imports it.
LIGHT_IMPORT = (
    "from labkit.startup.quiet_import import import_tensorflow, leave_out_extras\n"
    "leave_out_extras(); import_tensorflow()"
)
SETTLED_AFTER_STEP = 10  # the step is compiled and the buffers are full


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--train-steps", type=at_least(20), default=60, help="steps of the run that is watched"
    )
    measure_and_report("startup", __doc__, parser.parse_args(arguments), measure)


def measure(options: argparse.Namespace, manifest: Manifest, folder: Path) -> list[Figure]:
    """Start each command in new processes."""
    helped = [seconds_of(["--help"], folder) for _ in range(options.repeats)]
    prepared = seconds_of_second_prepare(options.repeats, folder)
    imported, lighter, runs = [], [], []
    for index in range(options.repeats):  # in turn, because the machine's speed drifts
        imported.append(seconds_of_import(PLAIN_IMPORT, folder))
        lighter.append(seconds_of_import(LIGHT_IMPORT, folder))
        runs.append(watch_run(run_arguments(manifest, options), folder / f"run{index}"))
    return figures(helped, prepared, imported, lighter, runs)


def seconds_of(arguments: Sequence[str], folder: Path) -> float:
    """Return the wall time of a ``labkit`` command. Raises RuntimeError with its output if it fails."""
    return run([LABKIT, *arguments], folder / "command.log")


def seconds_of_import(code: str, folder: Path) -> float:
    """Return the wall time of a process that imports TensorFlow by ``code`` and ends."""
    return run([sys.executable, "-c", f"{code}; import os; os._exit(0)"], folder / "command.log")


def seconds_of_second_prepare(repeats: int, folder: Path) -> list[float]:
    """Prepare a data set and time the second call: CIFAR-10 if LABKIT_CIFAR10 is set, else shapes."""
    archive = cifar10_archive()
    source = ["--dataset", "cifar10", "--archive", str(archive)] if archive else ["--dataset", "shapes"]
    arguments = ["data", "prepare", "--data-dir", str(folder / "data"), *source]
    seconds_of(arguments, folder)
    return [seconds_of(arguments, folder) for _ in range(repeats)]


def run_arguments(manifest: Manifest, options: argparse.Namespace) -> list[str]:
    """Return ``labkit``'s arguments for a short run with everything that a run does."""
    return [
        *("train", "--preset", "resnet20_one_cycle", "--num-layers", str(options.num_layers)),
        *("--train-batch-size", str(options.batch_size), "--train-steps", str(options.train_steps)),
        *("--dataset", manifest.dataset, "--data-dir", str(manifest.directory.parent), "--num-gpus", "0"),
        *("--validate-every-steps", str(options.train_steps // 2)),
    ]


@dataclass(frozen=True)
class Watched:
    """A run: seconds from the command to the end of the first step, and resident memory in GB (10^9 bytes).

    ``peak``: of the whole process. ``steady``: the median while it trained.
    """

    first_step: float
    peak: float
    steady: float


def watch_run(arguments: Sequence[str], folder: Path) -> Watched:
    """Run ``labkit`` with a run directory in ``folder``; return what was seen of it.

    The peak is reported by the kernel. Raises RuntimeError if the run fails or is too short.
    """
    samples = []
    with Training(folder, arguments) as training:
        process = training.process
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if len(training.poll()) >= SETTLED_AFTER_STEP:
                samples.append(psutil.Process(process.pid).memory_info().rss)
            time.sleep(0.1)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not samples:
            raise training.failure(
                f"labkit {' '.join(arguments)} failed, or ended before step {SETTLED_AFTER_STEP}"
            )
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, see getrusage(2)
    first_step = min(row["wall_time"] for row in training.poll()) - training.started
    return Watched(first_step, usage.ru_maxrss * unit / 1e9, statistics.median(samples) / 1e9)


def figures(
    helped: list[float],
    prepared: list[float],
    imported: list[float],
    lighter: list[float],
    runs: list[Watched],
) -> list[Figure]:
    """Return the figures; those of the imports have no goals.

    The second run is a second start of the same configuration, and so are all later ones.
    """
    more, more_than_lighter = (
        [run.first_step - seconds for run, seconds in zip(runs, imports, strict=True)]
        for imports in (imported, lighter)
    )
    again = [Figure("the same, started again", "s", more[1:], NEXT_START_GOAL)] if len(more) > 1 else []
    return [
        Figure("labkit --help", "s", helped, HELP_GOAL),
        Figure("second labkit data prepare", "s", prepared, PREPARE_GOAL),
        Figure("import tensorflow", "s", imported),
        Figure("first step of ResNet-20, behind that import", "s", more, FIRST_STEP_GOAL),
        *again,
        Figure("import of TensorFlow by a command of labkit", "s", lighter),
        Figure("first step of ResNet-20, behind that import by labkit", "s", more_than_lighter),
        Figure("resident memory of a run, peak", "GB", [run.peak for run in runs], MEMORY_GOAL),
        Figure("resident memory of a run, median", "GB", [run.steady for run in runs], MEMORY_GOAL),
    ]


if __name__ == "__main__":
    main()
