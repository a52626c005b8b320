"""Full trainings with `labkit train` and, by the recipes of torch_recipes.py, in PyTorch."""

import datetime
import itertools
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import fast_precisions, write_arrays
from benchmarks.processes import ALLOCATORS, LABKIT, environment_with, run
from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.reader import read_metrics, with_evaluations

TRIALS = 3  # of each form of PyTorch
SLOWEST = 0.8  # a form that is slower in each trial, relative to the fastest so far, isn't tried again
TRIAL_STEPS = {"airbench94_muon": 2, "resnet20": 24}


@dataclass(frozen=True)
class Trained:
    """The result of a finished run.

    ``test``: the row of the test with its last weights; None without a test. ``seconds``: of all training
    steps, including compilation but not validation or what is done between steps. ``curve``: seconds of
    training and accuracy for each step that was evaluated on the requested split. ``date``: of the last step.
    ``form``: how a peer computed.
    """

    test: dict[str, Any] | None
    seconds: float
    curve: list[tuple[float, float]]
    date: datetime.date
    form: str | None = None

    @property
    def accuracy(self) -> float:
        """Of the test, in per cent; NaN without one."""
        return 100 * self.test["accuracy"] if self.test else float("nan")


def config_of(manifest: Manifest, job_dir: Path, values: Mapping[str, Any]) -> Config:
    """Return the configuration of a run on one CPU and a prepared data set; ``values``: of the rest."""
    location = {"dataset": manifest.dataset, "data_dir": str(manifest.directory.parent), "num_gpus": 0}
    return Config.from_flat({**values, **location, "job_dir": str(job_dir)})


def train_to_end(config: Config) -> Trained:
    """Train or resume a run with `labkit train`; a finished run is only read.

    The output goes to a file beside the run directory. Raises RuntimeError if the training fails.
    """
    return read_trained(_labkit(config, *train_arguments(config)))


def evaluate_checkpoints(config: Config, split: str) -> Trained:
    """Evaluate those checkpoints of a finished run that have no metrics yet with `labkit evaluate --watch`.

    Each image is seen once, also where the run's own evaluations see several views.

    Raises RuntimeError if that fails.
    """
    path = str(config.run.job_dir)
    options = ("--watch", "--split", split, "--test-time-augmentation", "none")
    return read_trained(_labkit(config, "evaluate", path, *options), split)


def _labkit(config: Config, *arguments: str) -> RunDirectory:
    """Run a command about the run of a configuration; return the run."""
    assert config.run.job_dir is not None
    directory = RunDirectory(config.run.job_dir)
    directory.path.parent.mkdir(parents=True, exist_ok=True)
    run([LABKIT, *arguments], Path(f"{directory.path}.txt"), environment_with("default"))
    return directory


def read_trained(directory: RunDirectory, split: str = "validation") -> Trained:
    """Return the result of a run so far, with its curve on ``split``."""
    reader = read_metrics(directory)
    rows = sorted(reader.split("train"), key=lambda row: row["step"])
    seconds = itertools.accumulate(float(row["seconds_per_step"]) for row in rows)
    spent = {row["step"]: so_far for row, so_far in zip(rows, seconds, strict=True)}
    evaluated = {row["step"]: row["accuracy"] for row in with_evaluations(reader) if row["split"] == split}
    curve = [(spent[step], accuracy) for step, accuracy in sorted(evaluated.items()) if step in spent]
    tests = reader.split("test")
    date = datetime.datetime.fromtimestamp(rows[-1]["wall_time"], datetime.UTC).date()
    return Trained(tests[-1] if tests else None, max(spent.values(), default=0.0), curve, date)


# ---- PyTorch -----------------------------------------------------------------------------------------------


class TorchForm(NamedTuple):
    """How PyTorch computes: ``precision``, ``execution`` (``eager`` or ``compile``) and allocator."""

    precision: str
    execution: str
    allocator: str

    def __str__(self) -> str:
        return f"{self.precision}, {self.execution}, allocator {self.allocator}"


class TorchTrainings:
    """Trains with a recipe once for each seed; finished trainings are only read.

    Args:
        recipe: its name in torch_recipes.py.
        runs: the results are kept in a folder of this one, by data set and version of PyTorch.
        manifest: whose training images are used, all of them.
        steps: of each training; None: the recipe's.
    """

    def __init__(self, recipe: str, runs: Path, manifest: Manifest, steps: int | None = None) -> None:
        kept = f"{manifest.dataset}-{manifest.checksum[:8]}-{metadata.version('torch')}"
        self._recipe, self._folder, self._steps = recipe, runs / "pytorch" / kept, steps
        self._folder.mkdir(parents=True, exist_ok=True)
        self._arrays = {split: self._folder / f"{split}.npz" for split in ("train", "test")}
        for split, path in self._arrays.items():
            if not path.exists():
                write_arrays(manifest, split, path)
        self.form = self._fastest()

    def train(self, seed: int) -> Trained:
        """Train with a seed and test the last weights. Raises RuntimeError if the training fails."""
        steps = [] if self._steps is None else ["--steps", str(self._steps)]
        name = f"{self._recipe}-{seed}" + (f"-{self._steps}" if self._steps else "")
        test = ["--test-arrays", str(self._arrays["test"])]
        result = self._run(self.form, name, ["--seed", str(seed), *test, *steps])
        curve = [tuple(point) for point in result["curve"]]
        tested = {key: result[key] for key in ("accuracy", "tta_accuracy")}
        date = datetime.date.fromisoformat(result["date"])
        return Trained(tested, result["seconds"], curve, date, str(self.form))

    def _fastest(self) -> TorchForm:
        """Return the form with the best median speed over some steps, each in a new process, in turn."""
        known = self._folder / f"{self._recipe}-form.json"
        if known.exists():
            return TorchForm(**json.loads(known.read_text()))
        ways = itertools.product(fast_precisions(), ("eager", "compile"), ALLOCATORS)
        forms = [TorchForm(*way) for way in ways]
        speeds: dict[TorchForm, list[float]] = {form: [] for form in forms}
        for trial in range(TRIALS):
            fastest = max((max(values) for values in speeds.values() if values), default=0.0)
            for number, form in enumerate(forms):
                if trial and max(speeds[form], default=0.0) < SLOWEST * fastest:
                    continue  # it was far behind each time, or could not be compiled here
                steps = ["--steps", str(TRIAL_STEPS[self._recipe])]
                try:
                    result = self._run(form, f"trial-{self._recipe}-{number}-{trial}", steps)
                except RuntimeError as error:
                    if form.execution == "eager":
                        raise
                    print(f"without {self._recipe}, {form}: {str(error).splitlines()[-1]}", flush=True)
                    continue
                speeds[form].append(result["images_per_second"])
        for form, values in speeds.items():
            rates = [round(value) for value in values]
            print(f"{self._recipe} in PyTorch, {form}: {rates} images/s", flush=True)
        tried = [form for form in forms if len(speeds[form]) == TRIALS]
        best = max(tried, key=lambda form: statistics.median(speeds[form]))
        write_json_atomic(known, best._asdict())
        return best

    def _run(self, form: TorchForm, name: str, flags: list[str]) -> dict[str, Any]:
        output = self._folder / f"{name}.json"
        if not output.exists():
            command = [sys.executable, "-m", "benchmarks.torch_recipes", self._recipe, *flags]
            command += ["--arrays", str(self._arrays["train"]), "--output", str(output)]
            command += ["--precision", form.precision, "--form", form.execution]
            run(command, output.with_suffix(".txt"), environment_with(form.allocator))
        return json.loads(output.read_text())
