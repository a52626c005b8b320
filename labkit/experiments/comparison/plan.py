"""Plan a comparison: decide and check which trainings it makes and where, before anything is written. Then
run them one after the other, each in a new process of ``labkit train``.

Doesn't import TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import home
from labkit.cluster.flags import train_arguments
from labkit.config import Config
from labkit.config.architectures import model_name, parse_model_name
from labkit.config.data_sets import checked_folds, fold_of_name
from labkit.config.fields import CODE
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.experiments.comparison.files import (
    Request,
    add_peak_memory,
    budget_differences,
    budget_of,
    measurements_path,
    read_measurements,
    read_request,
    request_path,
    run_directory,
)
from labkit.experiments.trials import Training, Trial, find_data_set, refuse_other_contents, run_trial
from labkit.parts.code import with_whole_paths
from labkit.parts.trust import files_of
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.disk import check_writable
from labkit.run_directory.stop import held
from labkit.startup.child import python_command
from labkit.startup.interruption import STOPPED
from labkit.training.checks import refuse_cluster
from labkit.training.place import place_run
from labkit.training.plan import plan_run

# Files that a comparison may have left in its directory without a comparison.json.
_OURS = r"\.lock|.+\.tmp|results\..+|.+-seed\d+(\.json)?"


@dataclass(frozen=True)
class ComparisonPlan:
    """All trainings of a comparison in order: first seed 0 of every model, then seed 1 of every model.

    With folds, a seed has a training of every model on each fold, one fold after the other. When a comparison
    is interrupted, the models therefore have the same number of trainings, give or take one.
    """

    output: Path
    request: Request
    trainings: tuple[Training, ...]


def default_output(config: Config, folds: int = 0) -> Path:
    """Return the default directory of a comparison, named after the data set, the budget and the folds."""
    default = budget_of(Config())  # left out, so that a new flag changes no folder's name
    budget = {name: value for name, value in budget_of(config).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(budget, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{config.data.dataset}-{digest}" + (f"-{folds}-folds" if folds else "")
    return home.home() / "comparisons" / name


def plan_comparison(
    models: Sequence[str],
    seeds: int,
    values: Mapping[str, Any],
    output: str | None = None,
    *,
    folds: int = 0,
    signals: Sequence[int] = (),
) -> ComparisonPlan:
    """Decide on every training of a comparison.

    Args:
        models: names as ``labkit.config.architectures.model_name`` gives them, or ``FILE.py:NAME``.
        seeds: the number of trainings of each model; the seeds count from 0.
        values: of ``labkit.experiments.comparison.files.shared_fields``, by name; others keep their
            defaults.
        output: the comparison's directory. None derives it from the budget, so that the same command finds
            it again, also with more models or seeds.
        folds: into how many the images are parted, on each of which each model is trained; 0: they aren't.
        signals: that asked this process to stop, also while it prepares a data set.

    Raises InputError if something can't be trained, or if the directory can't be written, holds other files,
    or holds a comparison with another budget.
    """
    if folds:
        checked_folds(folds)
        if values.get("fold") is not None:
            raise InputError(f"--fold is {values['fold']} with --folds {folds}; leave one of them out")
    configs = _configs(models, seeds, values)
    models = tuple(configs)
    config = next(iter(configs.values()))
    named_folder = home.expanded(output).absolute() if output else None
    recorded = _recorded(named_folder) if named_folder else None
    if named_folder and recorded:
        config = _as_recorded(config, recorded)
        if config.run.epochs is None:  # which the data turn into steps
            _check_same(named_folder, recorded, budget_of(config), folds)  # before preparing any data
    named, manifest = find_data_set(config, signals)
    examples = manifest.count("train")
    if folds:
        parted = examples + manifest.count("validation")
        examples = parted - math.ceil(parted / folds)
    config = config.with_steps_for(examples).replace(named | {"input_path": config.data.input_path})
    folder = named_folder or default_output(config, folds)
    recorded = recorded if named_folder else _recorded(folder)
    if recorded is not None:
        config = _as_recorded(config, recorded)
    path = {"input_path": choose_input_path(manifest, config.data.input_path)}
    budget = budget_of(config.replace(named | path))
    if recorded is not None:
        _check_same(folder, recorded, budget, folds, manifest)
    data_dir = config.data.data_dir if values.get("data_dir") is not None else None
    request = Request(tuple(models), seeds, budget, manifest.checksum, data_dir, folds)
    data = {"": (named, manifest)}
    for _, fold in request.trained[:folds]:
        data[fold] = find_data_set(config.replace({"fold": fold}), signals)
    trainings = []
    for seed, fold in request.trained:
        named, manifest = data[fold]
        for model in models:
            its = configs[model].with_steps_for(examples).replace(named | path)
            trainings.append(_training(folder, model, seed, fold, its, manifest))
    pending = [training for training in trainings if training.run_state != "finished"]
    if pending:
        plan_run(pending[0].config)  # checks the batch size and the data
    return ComparisonPlan(folder, request, tuple(trainings))


def _configs(models: Sequence[str], seeds: int, values: Mapping[str, Any]) -> dict[str, Config]:
    """Return the configuration of each model by its name, before the data set is known."""
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; allowed: 1 or more")
    if not any(models):
        raise InputError("--models is empty; name at least one, such as resnet20,vgg11 (see labkit models)")
    if not all(models):
        raise InputError(f"--models is {','.join(models)!r}, which has an extra comma; remove it")
    repeated = [name for name, count in Counter(models).items() if count > 1]
    if repeated:
        raise InputError(f"--models names {', '.join(repeated)} more than once; name each model once")
    by_name = {name: {"model": name} if CODE.fullmatch(name) else parse_model_name(name) for name in models}
    configs: dict[str, Config] = {}
    for name in models:
        try:
            config = with_whole_paths(Config.from_flat({**values, **by_name[name]}))
            files_of(config)  # which must be there
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        called = model_name(config.model)  # without the folder of a file
        if called in configs:
            raise InputError(f"--models names two {called}; rename one of the files")
        configs[called] = config
    refuse_cluster(next(iter(configs.values())))
    return configs


def _recorded(folder: Path) -> Request | None:
    """Return the recorded request of the comparison in ``folder``; None if there is none yet."""
    check_writable(folder, "--output")
    recorded = read_request(folder)
    if recorded is None:
        refuse_other_contents(folder, _OURS, "a comparison")
    return recorded


def _as_recorded(config: Config, recorded: Request) -> Config:
    """Return ``config`` with the recorded choices in place of ``auto`` and of a data set with a fold."""
    auto = {"dataset": config.data.dataset, "input_path": config.data.input_path}
    if fold_of_name(recorded.budget["dataset"]) == (config.data.dataset, config.data.fold):
        auto["dataset"] = "auto"
    return config.replace({name: recorded.budget[name] for name, value in auto.items() if value == "auto"})


def _check_same(
    folder: Path,
    recorded: Request,
    budget: Mapping[str, Any],
    folds: int,
    manifest: Manifest | None = None,
) -> None:
    differences = budget_differences(recorded.budget, budget)
    if recorded.folds != folds:
        differences.append(f"--folds is {recorded.folds} there, {folds} here")
    if manifest is not None and recorded.data_checksum != manifest.checksum:
        differences.append(
            f"the checksum of {manifest.dataset} is {recorded.data_checksum[:12]} there, "
            f"{manifest.checksum[:12]} here"
        )
    if differences:
        raise InputError(
            f"--output {folder} holds a comparison with another budget: {'; '.join(differences)}; "
            "name another directory"
        )


def _training(folder: Path, model: str, seed: int, fold: str, config: Config, manifest: Manifest) -> Training:
    run = run_directory(folder, model, seed, fold)
    config = config.replace({"seed": seed, "job_dir": str(run.path)})
    _, _, run_state = place_run(config, manifest)
    status = run.read_status()
    if run_state == "resumable" and status is not None and status.state == "failed":
        run_state = "failed"
    return Training(f"{model}{fold and f', fold {fold}'}, seed {seed}", config, run_state)


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
            configs.setdefault(model_name(training.config.model), training.config)
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
        signals: that asked this process to stop (``labkit.startup.interruption.stop_signals`` adds new ones).
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
    runs = [training.run for training in plan.trainings]
    finished = all((status := run.read_status()) and status.state == "finished" for run in runs)
    return 0 if finished and all(_is_measured(run) for run in runs) else 1


@contextlib.contextmanager
def _locked(plan: ComparisonPlan) -> Iterator[None]:
    """Hold the lock of the directory. If no training has written anything, remove what was created."""
    folder = plan.output
    made = [path for path in (folder, *folder.parents) if not path.exists()]  # the innermost first
    folder.mkdir(parents=True, exist_ok=True)
    busy = f"--output {folder} is being written by another process; wait or name another directory"
    with held(RunDirectory(folder), busy, [".lock"]):
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


def _do(training: Training, number: str, signals: Sequence[int], say: Callable[[str], None]) -> int | None:
    """Train and measure what isn't done. Returns an exit code if the comparison must end."""
    if training.run_state != "finished":
        if training.run_state == "new":
            measurements_path(training.run).unlink(missing_ok=True)
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
    if not _is_measured(training.run):
        say(f"measuring {training.name}")
        ended = run_trial(Trial(measure_command(training.run)), signals)
        if ended.code and not signals:
            say(f"{training.name} could not be measured ({ended})")
    return None


def _is_measured(run: RunDirectory) -> bool:
    return "inference_images_per_second" in read_measurements(run)


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
