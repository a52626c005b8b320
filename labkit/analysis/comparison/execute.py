"""The trainings of a comparison, one after the other, each in a fresh process of ``labkit train``."""

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from labkit.analysis.comparison.measurements import add_peak_memory, discard_measurements
from labkit.analysis.comparison.processes import run_to_end
from labkit.analysis.comparison.read_runs import read_measurements, read_request, request_path
from labkit.analysis.comparison.trials import Plan, Trial
from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock, write_json_atomic

__all__ = ["Execution", "check_command", "check_new", "measure_command", "prepare_data_set", "train_command"]

BAD_INPUT = 2
STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def prepare_data_set(config: Config, signals: Sequence[int]) -> None:
    """Make the data set of a configuration, in a process of its own.

    Raises InputError where it can't be had, KeyboardInterrupt where this process was asked to stop.
    """
    module = "labkit.analysis.comparison.prepare_data"
    ended = run_to_end([sys.executable, "-m", module, json.dumps(config.to_json())], signals)
    if signals:
        raise KeyboardInterrupt
    if ended.code:
        raise InputError(f"the data set could not be prepared ({ended}); see labkit data prepare --help")


def check_new(plan: Plan, signals: Sequence[int]) -> int:
    """Check the network of each model that has a training to begin, in a process of its own.

    Returns 0, or 2 where one can't be trained as asked, which that process has said. Raises InputError where
    it doesn't come to an answer, KeyboardInterrupt where this process was asked to stop.
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
    """Whatever of a plan isn't done yet.

    Args:
        plan: admitted.
        signals: grows while this process is asked to stop (``labkit.cluster.supervisor.stop_signals``).
        say: takes lines for people.
        retry_failed: whether trainings that failed before are tried again, from their last checkpoint.
    """

    def __init__(
        self,
        plan: Plan,
        signals: Sequence[int],
        say: Callable[[str], None],
        *,
        retry_failed: bool = False,
    ) -> None:
        self._plan, self._signals, self._say = plan, signals, say
        self._retry_failed = retry_failed

    def run(self) -> int:
        """Train and measure what isn't done. Returns the exit code of the comparison.

        0: everything is done; 1: a training failed, or what it needs to be measured did; 2: a training
        refused its input, and nothing else was tried; 128 + the signal that asked to stop.

        Raises InputError where another process works on the same comparison.
        """
        with self._locked():
            for trial in self._plan.trials:
                code = None if self._signals else self._done(trial)
                if self._signals:
                    return 128 + self._signals[0]
                if code is not None:
                    return code
        return self._verdict()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the directory; where no training got as far as writing, leave nothing behind."""
        folder = self._plan.output
        made = _make_folder(folder)
        lock = RunLock(RunDirectory(folder))
        if not lock.acquire():
            raise InputError(
                f"--output {folder} is being written by another process; wait for it or name another"
            )
        try:
            recorded = read_request(folder)
            request = self._plan.request.beside(recorded)  # what was measured before stays to be seen
            if request != recorded:
                write_json_atomic(request_path(folder), dataclasses.asdict(request))
            yield
        finally:
            if made and not any(trial.run.path.exists() for trial in self._plan.trials):
                request_path(folder).unlink(missing_ok=True)
                (folder / ".lock").unlink(missing_ok=True)
                for path in made:
                    with contextlib.suppress(OSError):  # somebody else has put something there
                        path.rmdir()
            lock.release()

    def _done(self, trial: Trial) -> int | None:
        """Do what isn't done of one training; return the exit code where the comparison ends with it."""
        found = trial.found
        if found == "failed" and not self._retry_failed:
            return None
        if found != "finished":
            if found == "new":
                discard_measurements(trial.run)
            number = self._plan.trials.index(trial) + 1
            goes_on = "" if found == "new" else ", which goes on"
            self._say(f"training {number} of {len(self._plan.trials)}: {trial.name}{goes_on}")
            ended = run_to_end(train_command(trial.config), self._signals)
            if trial.run.path.is_dir():
                add_peak_memory(trial.run, ended.peak_memory_bytes)
            if ended.code == BAD_INPUT or ended.code in STOPPED:
                return ended.code
            if ended.code:
                self._say(f"{trial.name} failed ({ended}); the comparison goes on")
                return None
        if "inference_images_per_second" not in read_measurements(trial.run):
            self._say(f"measuring {trial.name}")
            ended = run_to_end(measure_command(trial.run), self._signals)
            if ended.code and not self._signals:
                self._say(f"{trial.name} can't be measured ({ended})")
        return None

    def _verdict(self) -> int:
        return 0 if all(_is_complete(trial.run) for trial in self._plan.trials) else 1


def _is_complete(run: RunDirectory) -> bool:
    status = run.read_status()
    finished = status is not None and status.state == "finished"
    return finished and "inference_images_per_second" in read_measurements(run)


def _make_folder(path: Path) -> list[Path]:
    """Make a directory and those above it; return those that weren't there, the lowest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def check_command(configs: Mapping[str, Config]) -> list[str]:
    """Return the command that builds and checks the network of each of these configurations, by name."""
    text = json.dumps({name: config.to_json() for name, config in configs.items()})
    return [sys.executable, "-m", "labkit.analysis.comparison.check_models", text]


def train_command(config: Config) -> list[str]:
    """Return the command that trains ``config``, or goes on with it."""
    return [sys.executable, "-m", "labkit", *train_arguments(config)]


def measure_command(run: RunDirectory) -> list[str]:
    """Return the command that counts and times the model of a run."""
    return [sys.executable, "-m", "labkit.analysis.comparison.measure_model", str(run.path)]
