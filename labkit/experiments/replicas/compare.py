"""``compare_replicas``: one training on several layouts, checked before the first of them starts."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import home
from labkit.config import Config, by_field, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.config import recorded_config
from labkit.config.fields import argument
from labkit.data.manifest import Manifest
from labkit.data.recipe import requested_values
from labkit.distributed.cpu import has_no_gpu
from labkit.errors import InputError, short
from labkit.experiments.comparison.files import budget_differences
from labkit.experiments.replicas.result import LAYOUTS, Layout, LayoutLosses, ReplicaComparison, parse_layouts
from labkit.experiments.trials import (
    Training,
    Trial,
    TrialEnd,
    find_data_set,
    named_folder,
    print_at_once,
    refuse_other_contents,
    run_trial,
)
from labkit.parts.code import check_unchanged, with_whole_paths
from labkit.parts.objects import as_files
from labkit.parts.trust import digest_of, files_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.reader import read_metrics
from labkit.startup.interruption import stop_signals
from labkit.startup.template import Template
from labkit.training.checks import check_fits
from labkit.training.place import place_run, with_crop

# What is trained without a preset: a network for seconds, at a rate at which rounding in float32 stays within
# the tolerance (docs/decisions.md has the figures). The number of layers is that of the default network.
SETTINGS = {
    "dataset": "shapes",
    "num_layers": 8,
    "train_batch_size": 128,
    "learning_rate": 2e-4,
    "learning_rate_schedule": "constant",
    "batch_norm_decay": 0.9,
}
# Fields that make no other run, and yet losses that are rounded otherwise.
_ROUNDING = ("data_format", "variable_strategy", "num_intra_threads", "num_inter_threads", "xla")
_LAYOUT_DECIDES = "each layout decides it; name layouts, such as '2 GPUs' or '2 processes'"
_LAUNCHER_DECIDES = "labkit starts the processes of each layout; leave it out"
_NOT_COMPARED = "the losses of training are compared, nothing else; leave it out"
_INSTEAD_OF_ROLE = {
    "task": _LAUNCHER_DECIDES,
    "observation": "the losses are compared, and nothing else is looked at; give it to labkit train",
}
# Flags of labkit train that a comparison decides for each training, or has no use for.
INSTEAD = {
    "train_steps": "say how many with --steps",
    "job_dir": "each training has a directory of its own; name the one for all with --output",
    "early_stopping_patience": "the losses of all steps are compared, so none may stop early; leave it out",
    "evaluate_test": _NOT_COMPARED,
    "test_time_augmentation": _NOT_COMPARED,
    "num_gpus": _LAYOUT_DECIDES,
    "simulate_missing_gpus": _LAYOUT_DECIDES,
    "sync": _LAYOUT_DECIDES,
    "bind": _LAUNCHER_DECIDES,
    "gradient_compression": "not every layout exchanges gradients; leave it out",
    "variable_placement": "no layout has parameter servers; leave it out",
    "max_staleness": "no layout has parameter servers, so no update is stale; leave it out",
    "slow_worker": "not every layout has workers, and a slow one has the same losses; leave it out",
    "callbacks": "callbacks may change a training or end it; leave it out",
}


def compare_replicas(
    layouts: Sequence[str] = LAYOUTS,
    *,
    steps: int = 50,
    tolerance: float = 1e-5,
    output: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    announce: Callable[[str], None] = print_at_once,
    **flags: Any,
) -> ReplicaComparison:
    """Train one configuration on each layout, with and without synchronized batch normalization.

    Several replicas sum their gradients in another order than a single one, so rounding errors differ. They
    grow with each step, and faster at higher learning rates. With ``sync_batch_norm`` in float32 and at a low
    learning rate, the losses of 50 steps agree within 1e-5. Without it each replica has its own batch
    statistics, and the losses differ from the first step.

    Args:
        layouts: Layouts, on the command line separated by commas; the first is the reference. Allowed:
            '1 replica', 'N logical devices', 'N GPUs', 'N processes', 'N processes x M logical devices',
            'N processes x M GPUs'. Default: '1 replica,2 logical devices,4 logical devices,2 processes'.
        steps: Steps of each training.
        tolerance: Largest difference of two losses that agree, in nats.
        output: Folder of the run directories; finished runs there aren't trained again. None: a folder of
            labkit's home, whose name follows from the settings.
        preset: A named set of values; its ghost batches stay only with ``sync_batch_norm=False``. Without
            one, ``model`` (ResNet-8) is trained on ``shapes`` with batches of 128 at a constant rate of 2e-4.
        announce: takes lines for people, two for each training.
        **flags: any flag of ``labkit train`` by its name, and objects where ``labkit.train`` takes them.
            ``sync_batch_norm`` True or False trains with or without it alone.

    Raises InputError, before anything is trained, for values that can't be run, such as a batch size that
    isn't a multiple of the replicas. Raises RuntimeError, with the last lines of output, if a training fails.
    Raises KeyboardInterrupt, with the signal's number, if this process is asked to stop; the same call then
    continues.
    """
    chosen = parse_layouts(layouts)
    allowed = "a number above 0, in nats"
    tolerance = argument("--tolerance", tolerance, float, allowed=allowed)
    if not 0 < tolerance < math.inf:
        raise InputError(f"--tolerance is {short(tolerance)}; allowed: {allowed}")
    with as_files(flags) as given:
        config = _configuration(steps, preset, given)
        asked = config.model.sync_batch_norm if "sync_batch_norm" in given else None
        variants = (True, False) if asked is None else (asked,)
        for layout in chosen.values():
            for synchronized in variants:
                layout.check(config.replace({"sync_batch_norm": synchronized}))
        if named := named_folder("--output", output):  # with results and run directories of an earlier call
            refuse_other_contents(named, r"replicas\.\w+|\d+-\w+.*|\..*", "an earlier labkit replicas")
        with stop_signals() as signals:
            named_data, manifest = find_data_set(config, signals)
            check_fits(config, manifest)
            config = config.replace(named_data)
            folder = named or _default_folder(config)
            trainings = plan_trainings(config, chosen, variants, folder, manifest)
            losses = run_trainings(trainings, signals, announce)
    parts = {
        synchronized: LayoutLosses(
            synchronized,
            {name: losses[job_dir(folder, layout, synchronized)] for name, layout in chosen.items()},
            tolerance,
            config.model.precision,
        )
        for synchronized in variants
    }
    return ReplicaComparison(config, folder, parts.get(True), parts.get(False))


def _configuration(steps: int, preset: str | None, flags: Mapping[str, Any]) -> Config:
    fields, flags = fields_by_name(), by_field(flags)
    for name, value in flags.items():
        if instead := INSTEAD.get(name) or _INSTEAD_OF_ROLE.get(fields[name].role):
            raise InputError(f"{fields[name].flag} is {short(value)}; {instead}")
    allowed = "a whole number of at least 1"
    steps = argument("--steps", steps, int, allowed=allowed)
    if steps < 1:
        raise InputError(f"--steps is {short(steps)}; allowed: {allowed}")
    flags = {**flags, "train_steps": steps}
    defaults = SETTINGS if "model" not in flags else {**SETTINGS, "num_layers": None}
    values = {**defaults, **flags} if preset is None else requested_values(preset, flags)[0]
    if "ghost_batches" not in flags and values.get("sync_batch_norm", True):  # statistics of whole batches
        values = values | {"ghost_batches": 1}
    # Nothing is evaluated unless asked for; the size must be a multiple of the replicas all the same.
    values = {"validate_every_steps": 0} | values | {"evaluate_test": False}
    values.setdefault("eval_batch_size", Config.from_flat(values).data.images_per_step)
    config = with_whole_paths(Config.from_flat(values))
    files_of(config)  # which must be there
    return config


def _default_folder(config: Config) -> Path:
    whole = config.replace({"sync_batch_norm": False})  # one folder, whichever variants are asked for
    files = files_of(config)
    code = digest_of(files) if files else ""
    known, values = fields_by_name(), config.flat()
    rounding = {name: values[name] for name in _ROUNDING if values[name] != known[name].default}
    code += json.dumps(rounding) if rounding else ""
    name = f"replicas-{model_name(config.model)}-{config.data.dataset}-{whole.fingerprint(code)}"
    return home.home() / "comparisons" / name


# ---- trainings -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayoutTraining(Training):
    """One training of a comparison of layouts. ``config``: with the layout's devices."""

    layout: Layout


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
) -> list[LayoutTraining]:
    """Return all trainings in order. Raises InputError if the folder holds runs with other settings."""
    trainings: dict[Path, LayoutTraining] = {}
    for synchronized in variants:
        for name, layout in layouts.items():
            path = job_dir(folder, layout, synchronized)
            own = layout.config(config.replace({"sync_batch_norm": synchronized}), path)
            own = with_crop(own, manifest)  # as a run records it
            run = RunDirectory(path)
            if run.exists():
                recorded = recorded_config(run)
                there, here = ({name: each.flat()[name] for name in _ROUNDING} for each in (recorded, own))
                if differences := recorded.differences(own) + budget_differences(there, here):
                    raise InputError(
                        f"--output {folder} holds runs with other settings: {'; '.join(differences)}; "
                        "name another directory"
                    )
                check_unchanged(run, own, files_of(own), "undo the change, or name another --output")
            _, _, run_state = place_run(own, manifest)
            variant = ", synchronized" if synchronized else ", own statistics"
            title = name + variant * (layout.num_replicas > 1)
            trainings.setdefault(path, LayoutTraining(title, own, run_state, layout))
    return list(trainings.values())


def run_trainings(
    trainings: Sequence[LayoutTraining], signals: Sequence[int], announce: Callable[[str], None]
) -> dict[Path, NDArray[np.float64]]:
    """Run each training that isn't finished. Returns the losses by run directory."""
    losses = {}
    alone = [each for each in trainings if each.run_state != "finished" and each.layout.processes == 1]
    forks = len(alone) > 1 and has_no_gpu()
    with closing(Template(of_cluster=False)) if forks else nullcontext() as template:
        for number, training in enumerate(trainings, 1):
            title, seconds = f"training {number} of {len(trainings)}: {training.name}", ""
            if training.run_state == "finished":
                announce(f"{title}: already finished")
            else:
                announce(title)
                seconds = f" ({_train(training, signals, template).seconds:.0f} s)"
            found = losses[training.run.path] = _read_losses(training)
            announce(f"  loss {found[0]:.4f} at step 1, {found[-1]:.4f} at step {len(found)}{seconds}")
    return losses


def _train(training: LayoutTraining, signals: Sequence[int], template: Template | None) -> TrialEnd:
    """Train to the end in a child process, which never outlives this one."""
    path, layout = training.run.path, training.layout
    path.parent.mkdir(parents=True, exist_ok=True)
    trial = Trial(layout.command(training.config), layout.variables, path.with_suffix(".txt"))
    end = run_trial(trial, signals, template)
    if signals:
        raise KeyboardInterrupt(signals[0])
    if end.reason:
        raise InputError(end.reason)
    if end.code:
        raise RuntimeError(
            "\n".join(
                [f"the training in {path} failed ({end}); the end of {trial.log}:", *trial.last_lines(15)]
            )
        )
    return end


def _read_losses(training: LayoutTraining) -> NDArray[np.float64]:
    reader = read_metrics(training.run)
    rows, steps = reader.split("train"), training.config.run.train_steps
    if [row["step"] for row in rows] != list(range(1, steps + 1)):
        raise RuntimeError(
            f"the run in {training.run.path} has {len(rows)} training rows; expected: one a step from 1 to "
            f"{steps}"
        )
    return np.array([row["loss"] for row in rows], np.float64)
