"""``compare_replicas``: decide and check every training, then run them one after the other."""

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import home
from labkit.analysis.comparison.execute import prepare_data_set
from labkit.analysis.comparison.processes import run_to_end
from labkit.analysis.replicas.layouts import LAYOUTS, Layout, parse_layouts
from labkit.analysis.replicas.result import LayoutLosses, ReplicaComparison
from labkit.cluster.supervisor import stop_signals
from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.presets import preset_values
from labkit.config.recorded import recorded_config
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.disk import check_writable
from labkit.run_directory.metrics import MetricsReader
from labkit.training.checks import check_fits
from labkit.training.plan import place_run, prepared_data_set

__all__ = ["INSTEAD", "compare_replicas"]

# What is trained without a preset: a network for seconds, at a rate at which float32 stays within the tolerance
# (docs/decisions.md has the figures).
SETTINGS = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 128,
    "learning_rate": 2e-4,
    "learning_rate_schedule": "constant",
    "batch_norm_decay": 0.9,
}
_LAYOUT_DECIDES = "each layout decides it; name layouts, such as '2 GPUs' or '2 processes'"
_LAUNCHER_DECIDES = "labkit starts the processes of each layout; leave it out"
# Flags of labkit train that a comparison decides for each training.
INSTEAD = {
    "train_steps": "say how many with --steps",
    "job_dir": "each training has a directory of its own; name the one for all with --output",
    "evaluate_test": "the losses of training are compared, nothing else; leave it out",
    "num_gpus": _LAYOUT_DECIDES,
    "simulate_missing_gpus": _LAYOUT_DECIDES,
    "sync": _LAYOUT_DECIDES,
    "worker_hosts": _LAUNCHER_DECIDES,
    "ps_hosts": _LAUNCHER_DECIDES,
    "job_name": _LAUNCHER_DECIDES,
    "task_index": _LAUNCHER_DECIDES,
    "variable_placement": _LAUNCHER_DECIDES,
}


@dataclass(frozen=True)
class _Training:
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


def compare_replicas(
    layouts: Sequence[str] = LAYOUTS,
    *,
    steps: int = 50,
    tolerance: float = 1e-5,
    output: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    announce: Callable[[str], None] = print,
    **flags: Any,
) -> ReplicaComparison:
    """Train one configuration on each layout, with and without synchronized batch normalization.

    Several replicas sum their gradients in another order than a single one, so rounding errors differ. They
    grow with each step, and faster at higher learning rates. With ``sync_batch_norm`` in float32 and at a low
    learning rate, the losses of 50 steps agree within 1e-5. Without it each replica has its own batch
    statistics, and the losses differ from the first step.

    Args:
        layouts: such as ``1 replica``, ``4 logical devices``, ``2 processes``, ``2 GPUs`` or
            ``2 processes × 2 logical devices``; the first is the reference.
        steps: of each training.
        tolerance: the difference up to which two losses agree, in nats.
        output: folder of the run directories; finished runs there aren't trained again. None: a folder of
            labkit's home, whose name follows from the settings.
        preset: a named set of values; without one, ResNet-8 on ``shapes`` is trained with batches of 128 at
            a constant learning rate of 2e-4.
        announce: takes lines for people, two for each training.
        **flags: any flag of ``labkit train`` by its name. ``sync_batch_norm`` True or False trains with or
            without it alone.

    Raises InputError, before anything is trained, for values that can't be run, such as a batch size that
    isn't a multiple of the replicas. Raises RuntimeError, with the last lines of output, if a training fails.
    Raises KeyboardInterrupt, with the signal's number, if this process is asked to stop; the same call then
    continues.
    """
    chosen = parse_layouts(layouts)
    if not 0 < tolerance < math.inf:
        raise InputError(f"--tolerance is {tolerance}; allowed: a number above 0, in nats")
    config = _configuration(steps, preset, flags)
    asked = config.model.sync_batch_norm if "sync_batch_norm" in flags else None
    variants = (True, False) if asked is None else (asked,)
    for layout in chosen.values():
        for synchronized in variants:
            layout.check(config.replace({"sync_batch_norm": synchronized}))
    named = None if output is None else _named_folder(output)
    with stop_signals() as signals:
        config, manifest = _with_data_set(config, signals)
        folder = named or _default_folder(config)
        trainings = _plan(config, chosen, variants, folder, manifest)
        losses = _run(trainings, signals, announce)
    parts = {
        synchronized: LayoutLosses(
            synchronized,
            {name: losses[_job_dir(folder, layout, synchronized)] for name, layout in chosen.items()},
            tolerance,
            config.model.precision,
        )
        for synchronized in variants
    }
    return ReplicaComparison(config, folder, parts.get(True), parts.get(False))


def _configuration(steps: int, preset: str | None, flags: Mapping[str, Any]) -> Config:
    fields = fields_by_name()
    for name, instead in INSTEAD.items():
        if name in flags:
            raise InputError(f"{fields[name].flag} is {flags[name]!r}; {instead}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"--steps is {steps!r}; allowed: a whole number of at least 1")
    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in flags.items()
    }
    values = {**(SETTINGS if preset is None else preset_values(preset)), **given}
    # Nothing is evaluated unless asked for; the size must be a multiple of the replicas all the same.
    values = {"validate_every_steps": 0} | values | {"train_steps": steps, "evaluate_test": False}
    values.setdefault("eval_batch_size", Config.from_flat(values).data.train_batch_size)
    return Config.from_flat(values)


def _with_data_set(config: Config, signals: Sequence[int]) -> tuple[Config, Manifest]:
    """Return the configuration with the data set that was found, which is prepared if it is missing."""
    manifest, _ = prepared_data_set(config, may_prepare=True)
    if manifest is None:
        prepare_data_set(config, signals)
        manifest, _ = prepared_data_set(config, may_prepare=False)
    assert manifest is not None, "prepare raises where it can't make the data set"
    check_fits(config.data, manifest)
    found = {
        "dataset": manifest.dataset,
        "data_dir": str(manifest.directory.parent),
        "input_path": choose_input_path(manifest, config.data.input_path),
    }
    return config.replace(found), manifest


def _named_folder(output: str | os.PathLike[str]) -> Path:
    if not home.is_local_path(os.fspath(output)):
        raise InputError(f"--output is {os.fspath(output)!r}; allowed: {home.LOCAL_PATH}")
    folder = Path(output).expanduser().absolute()
    check_writable(folder, "--output")
    return folder


def _default_folder(config: Config) -> Path:
    whole = config.replace({"sync_batch_norm": False})  # one folder, whichever variants are asked for
    name = f"replicas-{model_name(config.model)}-{config.data.dataset}-{whole.fingerprint()}"
    return home.home() / "comparisons" / name


def _job_dir(folder: Path, layout: Layout, synchronized: bool) -> Path:
    """Return the run directory of a training; a single replica has one for both variants."""
    words = [f"{layout.processes}-processes"] if layout.processes > 1 else []
    if layout.devices > 1 or layout.kind == "GPU" or not words:
        words.append(f"{layout.devices}-{'gpus' if layout.kind == 'GPU' else 'devices'}")
    if layout.num_replicas > 1:
        words.append("synchronized" if synchronized else "own-statistics")
    return folder / "-".join(words)


def _plan(
    config: Config,
    layouts: Mapping[str, Layout],
    variants: Sequence[bool],
    folder: Path,
    manifest: Manifest,
) -> list[_Training]:
    """Return all trainings in order. Raises InputError if the folder holds runs with other settings."""
    trainings: dict[Path, _Training] = {}
    for synchronized in variants:
        for name, layout in layouts.items():
            job_dir = _job_dir(folder, layout, synchronized)
            own = layout.config(config.replace({"sync_batch_norm": synchronized}), job_dir)
            run = RunDirectory(job_dir)
            differences = recorded_config(run).differences(own) if run.exists() else []
            if differences:
                raise InputError(
                    f"--output {folder} holds runs with other settings: {'; '.join(differences)}; "
                    "name another directory"
                )
            _, _, found = place_run(own, manifest)
            trainings.setdefault(job_dir, _Training(name, layout, own, found))
    return list(trainings.values())


def _run(
    trainings: Sequence[_Training], signals: Sequence[int], announce: Callable[[str], None]
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


def _train(training: _Training, signals: Sequence[int]) -> None:
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


def _read_losses(training: _Training) -> NDArray[np.float64]:
    reader = MetricsReader(training.run.metrics_path)
    reader.poll()
    rows, steps = reader.split("train"), training.config.run.train_steps
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        raise RuntimeError(
            f"the run in {training.run.path} has {len(rows)} training rows; expected: one a step from 1 to "
            f"{steps}"
        )
    return np.array([row["loss"] for row in rows], np.float64)
