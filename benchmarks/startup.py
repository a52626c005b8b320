"""How fast do quick commands and a training start, and how much memory does a ResNet-20 run take?

Every value comes from a new process: `labkit --help`; `labkit data prepare` on data that is already prepared;
`import tensorflow`; and a short run with training, validation, checkpoints and test, whose first step is
waited for and whose resident memory is sampled.
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
from labkit.run_directory.reader import MetricsReader

QUESTION = "Do commands begin at once, and does a ResNet-20 run stay under 1.5 GB?"
HELP_GOAL = Goal("below", 0.4)
PREPARE_GOAL = Goal("below", 1.0)
FIRST_STEP_GOAL = Goal("below", 4.0)
NEXT_START_GOAL = Goal("below", 2.0)
MEMORY_GOAL = Goal("below", 1.5)
LABKIT = Path(sys.executable).parent / "labkit"
PLAIN_IMPORT = "import tensorflow"
LIGHT_IMPORT = (
    "from labkit.startup.quiet_import import *; leave_out_extras(); import_tensorflow()"  # a command's
)
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
        imported, lighter, runs = [], [], []
        for index in range(options.repeats):  # in turn, because the machine's speed drifts
            imported.append(seconds_of_import(PLAIN_IMPORT, folder))
            lighter.append(seconds_of_import(LIGHT_IMPORT, folder))
            runs.append(watch_run(run_flags(manifest, options), folder / f"run{index}"))
    report.finish(figures(helped, prepared, imported, lighter, runs), options.output)


def seconds_of(arguments: Sequence[str], folder: Path) -> float:
    """Return the wall time of a ``labkit`` command. Raises RuntimeError with its output if it fails."""
    return _seconds([str(LABKIT), *arguments], folder)


def seconds_of_import(code: str, folder: Path) -> float:
    """Return the wall time of a process that imports TensorFlow by ``code`` and ends."""
    return _seconds([sys.executable, "-c", f"{code}; import os; os._exit(0)"], folder)


def _seconds(command: Sequence[str], folder: Path) -> float:
    log = folder / "command.log"
    with open(log, "wb") as output:
        started = time.perf_counter()
        code = subprocess.call(command, stdout=output, stderr=output, cwd=ROOT)
        seconds = time.perf_counter() - started
    _check(code, command, log)
    return seconds


def _check(code: int, command: Sequence[str], log: Path) -> None:
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        words = [Path(command[0]).name, *command[1:]]
        raise RuntimeError(f"{' '.join(words)} ended with {code}:\n{tail}")


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
    folder.mkdir()
    run = RunDirectory(folder / "run")
    reader = MetricsReader(run.metrics_path)
    log = folder / "train.log"
    samples = []
    command = [str(LABKIT), *arguments, "--job-dir", str(run.path)]
    with open(log, "wb") as output:
        started = time.time()  # the clock of the rows' wall_time
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
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
    _check(process.returncode, command, log)
    if not samples:
        raise RuntimeError(f"labkit {' '.join(arguments)} ended before step {SETTLED_AFTER_STEP}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, see getrusage(2)
    first_step = min(row["wall_time"] for row in reader.rows) - started
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
        tuple(run.first_step - seconds for run, seconds in zip(runs, imports, strict=True))
        for imports in (imported, lighter)
    )
    again = [Figure("the same, started again", "s", more[1:], NEXT_START_GOAL)] if len(more) > 1 else []
    return [
        Figure("labkit --help", "s", tuple(helped), HELP_GOAL),
        Figure("second labkit data prepare", "s", tuple(prepared), PREPARE_GOAL),
        Figure("import tensorflow", "s", tuple(imported)),
        Figure("first step of ResNet-20, behind that import", "s", more, FIRST_STEP_GOAL),
        *again,
        Figure("import of TensorFlow by a command of labkit", "s", tuple(lighter)),
        Figure("first step of ResNet-20, behind that import by labkit", "s", more_than_lighter),
        Figure("resident memory of a run, peak", "GB", tuple(run.peak for run in runs), MEMORY_GOAL),
        Figure("resident memory of a run, median", "GB", tuple(run.steady for run in runs), MEMORY_GOAL),
    ]


if __name__ == "__main__":
    main()
