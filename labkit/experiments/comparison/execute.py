"""Run the trainings of a comparison one after the other, each in a new process of ``labkit train``."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

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
from labkit.experiments.comparison.processes import run_to_end
from labkit.experiments.comparison.trials import ComparisonPlan, Trial
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic
from labkit.startup.child import python_command
from labkit.startup.interruption import STOPPED

__all__ = ["Execution", "check_command", "check_new", "measure_command", "prepare_data_set", "train_command"]

BAD_INPUT = 2
PREPARE = python_command("-m", "labkit.experiments.comparison.child")


def prepare_data_set(config: Config, signals: Sequence[int]) -> None:
    """Prepare the data set of a configuration in a child process.

    Raises InputError if it can't be prepared, KeyboardInterrupt if this process was asked to stop.
    """
    ended = run_to_end([*PREPARE, "data", json.dumps(config.to_json())], signals)
    if signals:
        raise KeyboardInterrupt
    if ended.code:
        raise InputError(f"the data set could not be prepared ({ended}); see labkit data prepare --help")


def check_new(plan: ComparisonPlan, signals: Sequence[int]) -> int:
    """Check the network of each model that has a new training, in a child process.

    Returns 0, or 2 if a network can't be trained as asked; the child process has printed the reason. Raises
    InputError if the check itself fails, KeyboardInterrupt if this process was asked to stop.
    """
    configs: dict[str, Config] = {}
    for trial in plan.trials:
        if trial.found == "new":
            configs.setdefault(trial.model, trial.config)
    if not configs:
        return 0
    ended = run_to_end(check_command(configs), signals)
    if signals:
        raise KeyboardInterrupt
    if ended.code not in (0, BAD_INPUT):
        raise InputError(f"the networks could not be checked ({ended}); nothing was trained")
    return ended.code


class Execution:
    """Runs the trainings and measurements of a plan that aren't done yet.

    Args:
        plan: of ``plan_comparison``.
        signals: that asked this process to stop (``labkit.cluster.supervisor.stop_signals`` adds new ones).
        say: takes lines for people.
        retry_failed: whether to resume trainings that failed before, from their last checkpoint.
    """

    def __init__(
        self,
        plan: ComparisonPlan,
        signals: Sequence[int],
        say: Callable[[str], None],
        *,
        retry_failed: bool = False,
    ) -> None:
        self._plan, self._signals, self._say = plan, signals, say
        self._retry_failed = retry_failed

    def run(self) -> int:
        """Train and measure what isn't done. Returns the exit code of the comparison.

        0: everything is done. 1: a training or a measurement failed. 2: a training refused its input, and the
        comparison ended there. 128 + n: signal n asked to stop.

        Raises InputError if another process works on the same comparison.
        """
        with self._locked():
            for trial in self._plan.trials:
                code = None if self._signals else self._run_trial(trial)
                if self._signals:
                    return 128 + self._signals[0]
                if code is not None:
                    return code
        return 0 if all(_is_complete(trial.run) for trial in self._plan.trials) else 1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory. If no training has written anything, remove what was created."""
        folder = self._plan.output
        made = _make_folder(folder)
        lock = RunLock(RunDirectory(folder))
        if not lock.acquire():
            raise InputError(
                f"--output {folder} is being written by another process; wait or name another directory"
            )
        try:
            recorded = read_request(folder)
            request = self._plan.request.merged_with(recorded)  # earlier models and seeds stay in the table
            if request != recorded:
                write_json_atomic(request_path(folder), dataclasses.asdict(request))
            yield
        finally:
            if made and not any(trial.run.path.exists() for trial in self._plan.trials):
                request_path(folder).unlink(missing_ok=True)
                (folder / ".lock").unlink(missing_ok=True)
                for path in made:
                    with contextlib.suppress(OSError):  # another process has put something there
                        path.rmdir()
            lock.release()

    def _run_trial(self, trial: Trial) -> int | None:
        """Train and measure what isn't done of one trial. Returns an exit code if the comparison must end."""
        found = trial.found
        if found == "failed" and not self._retry_failed:
            return None
        if found != "finished":
            if found == "new":
                discard_measurements(trial.run)
            number = self._plan.trials.index(trial) + 1
            resumes = "" if found == "new" else ", resumed"
            self._say(f"training {number} of {len(self._plan.trials)}: {trial.name}{resumes}")
            ended = run_to_end(train_command(trial.config), self._signals)
            if trial.run.path.is_dir():
                add_peak_memory(trial.run, ended.peak_memory_bytes)
            if ended.code == BAD_INPUT or ended.code in STOPPED:
                return ended.code
            if ended.code:
                self._say(f"{trial.name} failed ({ended}); the comparison continues")
                return None
        if "inference_images_per_second" not in read_measurements(trial.run):
            self._say(f"measuring {trial.name}")
            ended = run_to_end(measure_command(trial.run), self._signals)
            if ended.code and not self._signals:
                self._say(f"{trial.name} could not be measured ({ended})")
        return None


def _is_complete(run: RunDirectory) -> bool:
    status = run.read_status()
    finished = status is not None and status.state == "finished"
    return finished and "inference_images_per_second" in read_measurements(run)


def _make_folder(path: Path) -> list[Path]:
    """Create a directory and its parents. Returns those that were missing, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def check_command(configs: Mapping[str, Config]) -> list[str]:
    """Return the command that checks the networks of configurations, given by the model's name."""
    text = json.dumps({name: config.to_json() for name, config in configs.items()})
    return [*PREPARE, "networks", text]


def train_command(config: Config) -> list[str]:
    """Return the command that trains ``config``, or resumes its run."""
    return python_command("-m", "labkit", *train_arguments(config))


def measure_command(run: RunDirectory) -> list[str]:
    """Return the command that measures the model of a run."""
    return python_command("-m", "labkit.experiments.comparison.measure_model", run.path)
