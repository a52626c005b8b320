"""Full trainings in PyTorch with the recipes of torch_recipes.py, in their fastest form on this machine."""

import datetime
import itertools
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.allocators import ALLOCATORS, environment_with
from benchmarks.common import PRECISIONS, ROOT, write_arrays
from benchmarks.trainings import Trained
from labkit.data.manifest import Manifest
from labkit.distributed.cpu import bfloat16_instructions
from labkit.run_directory import write_json_atomic

__all__ = ["TorchForm", "TorchTrainings"]

TRIALS = 3  # of each form
SLOWEST = 0.8  # a form that is slower in each trial, relative to the fastest so far, isn't tried again
TRIAL_STEPS = {"airbench94_muon": 2, "resnet20": 24}


@dataclass(frozen=True)
class TorchForm:
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
        """Train with a seed and test the last weights. Raises SystemExit if the training fails."""
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
        precisions = PRECISIONS if bfloat16_instructions() else PRECISIONS[:1]
        forms = [TorchForm(*each) for each in itertools.product(precisions, ("eager", "compile"), ALLOCATORS)]
        speeds: dict[TorchForm, list[float]] = {form: [] for form in forms}
        for trial in range(TRIALS):
            fastest = max((max(values) for values in speeds.values() if values), default=0.0)
            for number, form in enumerate(forms):
                if trial and max(speeds[form], default=0.0) < SLOWEST * fastest:
                    continue  # it was far behind each time, or could not be compiled here
                steps = ["--steps", str(TRIAL_STEPS[self._recipe])]
                name = f"trial-{self._recipe}-{number}-{trial}"
                try:
                    result = self._run(form, name, steps)
                except SystemExit as error:
                    if form.execution == "eager":
                        raise
                    print(f"without {self._recipe}, {form}: {str(error).splitlines()[-1]}", flush=True)
                    continue
                speeds[form].append(result["images_per_second"])
        for form, values in speeds.items():
            print(
                f"{self._recipe} in PyTorch, {form}: {[round(value) for value in values]} images/s",
                flush=True,
            )
        tried = [form for form in forms if len(speeds[form]) == TRIALS]
        best = max(tried, key=lambda form: statistics.median(speeds[form]))
        write_json_atomic(known, vars(best))
        return best

    def _run(self, form: TorchForm, name: str, flags: list[str]) -> dict[str, Any]:
        output = self._folder / f"{name}.json"
        if not output.exists():
            command = [sys.executable, "-m", "benchmarks.torch_recipes", self._recipe, *flags]
            command += ["--arrays", str(self._arrays["train"]), "--output", str(output)]
            command += ["--precision", form.precision, "--form", form.execution]
            log = output.with_suffix(".txt")
            with open(log, "w") as stream:
                code = subprocess.call(
                    command,
                    cwd=ROOT,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=environment_with(form.allocator),
                )
            if code:
                raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-2000:]}")
        return json.loads(output.read_text())
