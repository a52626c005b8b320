"""The trainings of a comparison: where each is written, whether it is finished, and how it is run."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.experiments.comparison.processes import run_to_end
from labkit.experiments.replicas.layouts import Layout
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from labkit.training.place import place_run

__all__ = ["Training", "job_dir", "plan_trainings", "run_trainings"]


@dataclass(frozen=True)
class Training:
    """One training. ``config``: with the layout's devices and the run directory."""

    name: str
    layout: Layout
    config: Config
    found: str

    @property
    def run(self) -> RunDirectory:
        assert self.config.run.job_dir is not None
        return RunDirectory(self.config.run.job_dir)

    @property
    def title(self) -> str:
        if self.layout.num_replicas == 1:
            return self.name
        statistics = "synchronized" if self.config.model.sync_batch_norm else "own statistics"
        return f"{self.name}, {statistics}"


def job_dir(folder: Path, layout: Layout, synchronized: bool) -> Path:
    """Return the run directory of a training; a single replica has one for both variants."""
    words = [f"{layout.processes}-processes"] if layout.processes > 1 else []
    if layout.devices > 1 or layout.kind == "GPU" or not words:
        words.append(f"{layout.devices}-{'gpus' if layout.kind == 'GPU' else 'devices'}")
    if layout.num_replicas > 1:
        words.append("synchronized" if synchronized else "own-statistics")
    return folder / "-".join(words)


def plan_trainings(
    config: Config,
    layouts: Mapping[str, Layout],
    variants: Sequence[bool],
    folder: Path,
    manifest: Manifest,
) -> list[Training]:
    """Return all trainings in order. Raises InputError if the folder holds runs with other settings."""
    trainings: dict[Path, Training] = {}
    for synchronized in variants:
        for name, layout in layouts.items():
            path = job_dir(folder, layout, synchronized)
            own = layout.config(config.replace({"sync_batch_norm": synchronized}), path)
            run = RunDirectory(path)
            differences = recorded_config(run).differences(own) if run.exists() else []
            if differences:
                raise InputError(
                    f"--output {folder} holds runs with other settings: {'; '.join(differences)}; "
                    "name another directory"
                )
            _, _, found = place_run(own, manifest)
            trainings.setdefault(path, Training(name, layout, own, found))
    return list(trainings.values())


def run_trainings(
    trainings: Sequence[Training], signals: Sequence[int], announce: Callable[[str], None]
) -> dict[Path, NDArray[np.float64]]:
    """Run each training that isn't finished. Returns the losses by run directory."""
    losses = {}
    for number, training in enumerate(trainings, 1):
        place = f"training {number} of {len(trainings)}: {training.title}"
        started = time.monotonic()
        if training.found == "finished":
            announce(f"{place}: already finished")
        else:
            announce(place)
            _train(training, signals)
        found = losses[training.run.path] = _read_losses(training)
        seconds = "" if training.found == "finished" else f" ({time.monotonic() - started:.0f} s)"
        announce(f"  loss {found[0]:.4f} at step 1, {found[-1]:.4f} at step {len(found)}{seconds}")
    return losses


def _train(training: Training, signals: Sequence[int]) -> None:
    """Train to the end in a child process, which never outlives this one."""
    path = training.run.path
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".txt")
    with open(log, "wb") as output:
        command, environment = training.layout.command(training.config), training.layout.environment()
        ended = run_to_end(command, signals, environment=environment, output=output)
    if signals:
        raise KeyboardInterrupt(signals[0])
    if ended.code == 0:
        return
    lines = log.read_text(errors="replace").strip().splitlines()
    if ended.code == 2 and lines:
        raise InputError(re.split(r"error: ", lines[-1], maxsplit=1)[-1])
    raise RuntimeError(
        "\n".join([f"the training in {path} failed ({ended}); the end of {log}:", *lines[-15:]])
    )


def _read_losses(training: Training) -> NDArray[np.float64]:
    reader = read_metrics(training.run)
    rows, steps = reader.split("train"), training.config.run.train_steps
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        raise RuntimeError(
            f"the run in {training.run.path} has {len(rows)} training rows; expected: one a step from 1 to "
            f"{steps}"
        )
    return np.array([row["loss"] for row in rows], np.float64)
