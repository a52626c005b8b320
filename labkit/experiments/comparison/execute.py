"""Run the trainings of a comparison one after the other, each in a new process of ``labkit train``."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.errors import InputError
from labkit.experiments.comparison.files import (
    add_peak_memory,
    discard_measurements,
    read_measurements,
    read_request,
    request_path,
)
from labkit.experiments.comparison.plan import ComparisonPlan, ModelTraining
from labkit.experiments.trials import Trial, run_trial
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic
from labkit.startup.child import python_command
from labkit.startup.interruption import STOPPED

BAD_INPUT = 2
CHILD = python_command("-m", "labkit.experiments.comparison.child")


def check_new(plan: ComparisonPlan, signals: Sequence[int]) -> int:
    """Check the network of each model that has a new training, in a child process.

    Returns 0, or 2 if a network can't be trained as asked; the child process has printed the reason. Raises
    InputError if the check itself fails, KeyboardInterrupt if this process was asked to stop.
    """
    configs: dict[str, Config] = {}
    for training in plan.trainings:
        if training.run_state == "new":
            configs.setdefault(training.model, training.config)
    if not configs:
        return 0
    ended = run_trial(Trial(check_command(configs)), signals)
    if signals:
        raise KeyboardInterrupt
    if ended.code not in (0, BAD_INPUT):
        raise InputError(f"the networks could not be checked ({ended}); nothing was trained")
    return ended.code


def run_comparison(
    plan: ComparisonPlan,
    signals: Sequence[int],
    say: Callable[[str], None],
    *,
    retry_failed: bool = False,
) -> int:
    """Run the trainings and measurements of a plan that aren't done yet.

    Args:
        plan: of ``plan_comparison``.
        signals: that asked this process to stop (``labkit.startup.stopping.stop_signals`` adds new ones).
        say: takes lines for people.
        retry_failed: whether to resume trainings that failed before, from their last checkpoint.

    Returns the exit code of the comparison. 0: everything is done. 1: a training or a measurement failed.
    2: a training refused its input, and the comparison ended there. 128 + n: signal n asked to stop.

    Raises InputError if another process works on the same comparison.
    """
    with _locked(plan):
        for number, training in enumerate(plan.trainings, 1):
            code = None
            if not signals and (training.run_state != "failed" or retry_failed):
                code = _do(training, f"{number} of {len(plan.trainings)}", signals, say)
            if signals:
                return 128 + signals[0]
            if code is not None:
                return code
    return 0 if all(_is_complete(training.run) for training in plan.trainings) else 1


@contextlib.contextmanager
def _locked(plan: ComparisonPlan) -> Iterator[None]:
    """Hold the lock of the directory. If no training has written anything, remove what was created."""
    folder = plan.output
    made = [path for path in (folder, *folder.parents) if not path.exists()]  # the innermost first
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(RunDirectory(folder))
    if not lock.acquire():
        raise InputError(
            f"--output {folder} is being written by another process; wait or name another directory"
        )
    try:
        recorded = read_request(folder)
        request = plan.request.merged_with(recorded)  # earlier models and seeds stay in the table
        if request != recorded:
            write_json_atomic(request_path(folder), dataclasses.asdict(request))
        yield
    finally:
        if made and not any(training.run.path.exists() for training in plan.trainings):
            request_path(folder).unlink(missing_ok=True)
            (folder / ".lock").unlink(missing_ok=True)
            for path in made:
                with contextlib.suppress(OSError):  # another process has put something there
                    path.rmdir()
        lock.release()


def _do(
    training: ModelTraining, number: str, signals: Sequence[int], say: Callable[[str], None]
) -> int | None:
    """Train and measure what isn't done. Returns an exit code if the comparison must end."""
    if training.run_state != "finished":
        if training.run_state == "new":
            discard_measurements(training.run)
        resumes = "" if training.run_state == "new" else ", resumed"
        say(f"training {number}: {training.name}{resumes}")
        ended = run_trial(Trial(train_command(training.config)), signals)
        if training.run.path.is_dir():
            add_peak_memory(training.run, ended.peak_memory_bytes)
        if ended.code == BAD_INPUT or ended.code in STOPPED:
            return ended.code
        if ended.code:
            say(f"{training.name} failed ({ended}); the comparison continues")
            return None
    if "inference_images_per_second" not in read_measurements(training.run):
        say(f"measuring {training.name}")
        ended = run_trial(Trial(measure_command(training.run)), signals)
        if ended.code and not signals:
            say(f"{training.name} could not be measured ({ended})")
    return None


def _is_complete(run: RunDirectory) -> bool:
    status = run.read_status()
    finished = status is not None and status.state == "finished"
    return finished and "inference_images_per_second" in read_measurements(run)


def check_command(configs: Mapping[str, Config]) -> list[str]:
    """Return the command that checks the networks of configurations, given by the model's name."""
    text = json.dumps({name: config.to_json() for name, config in configs.items()})
    return [*CHILD, "networks", text]


def train_command(config: Config) -> list[str]:
    """Return the command that trains ``config``, or resumes its run."""
    return python_command("-m", "labkit", *train_arguments(config))


def measure_command(run: RunDirectory) -> list[str]:
    """Return the command that measures the model of a run."""
    return [*CHILD, "measure", str(run.path)]
