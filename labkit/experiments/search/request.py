"""What a search is asked to do: checked before anything is written, and kept in ``search.json``."""

import hashlib
import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config, by_field, fields_by_name
from labkit.config.fields import MOST, argument
from labkit.config.presets import AUTO
from labkit.data.manifest import Manifest, load_manifest
from labkit.data.recipe import fits_the_data, requested_values
from labkit.distributed.cpu import has_no_gpu, missing_gpus_error
from labkit.errors import InputError, short
from labkit.experiments.search.files import Dimension, Request, read_request
from labkit.experiments.search.space import parse_space, with_values
from labkit.experiments.trials import find_data_set, refuse_other_contents
from labkit.parts.code import with_whole_paths
from labkit.parts.trust import acting, digest_of, files_of
from labkit.plurals import without_secrets
from labkit.run_directory.disk import check_disk_space
from labkit.run_directory.metrics import is_minimized
from labkit.run_directory.rows import EVALUATION_METRICS
from labkit.startup.process import usable_cores
from labkit.training.checks import check_fits, refuse_cluster, validation_command
from labkit.training.plan import plan_run

_OURS = r"\..+|.*\.(json|log|md)|\d{4,}-seed\d+"  # what a search leaves in its folder
_DEFAULT_TRIALS, _MOST_TRIALS = 20, 1000
_VALIDATIONS = 20  # of a training that is compared by seconds, and says nothing else
TRIAL_BYTES = 2**27  # that must be free for a training to start
_MEASURES = {"class": "accuracy", "numbers": "mean_absolute_error"}
# Flags of labkit train that a search decides for each trial.
_INSTEAD = {
    "job_dir": "each trial has a directory of its own; name the one for all with --output",
    "evaluate_test": "no trial sees the test set; the repeats of the best one do, and --repeats 0 has none",
    "best_by": "name the metric with --objective",
    "early_stopping_patience": "all trials are compared at the same steps; use --halving",
}
_LOWEST = {"trials": 1, "eta": 2, "seeds": 1, "in_flight": 1, "repeats": 0, "workers": 1}
_NAMES = {"sampler": ("tpe", "random", "grid"), "halving": ("none", "successive", "asha")}


def merged(folder: Path, asked: Request) -> Request:
    """Return what a search does that may be in the folder already: with the larger number of trials.

    Raises InputError if the folder has another search, or something else.
    """
    if (there := read_request(folder)) is None:
        refuse_other_contents(folder, _OURS, "a search")
        return asked
    before, now = there.identity(), asked.identity()
    if changed := next((name for name in now if before.get(name) != now[name]), None):
        what = "code or preset" if changed == "code" else changed
        raise InputError(
            f"--output {folder} has a search with another {what}: {short(before.get(changed))} there, "
            f"{short(now[changed])} here; name another folder"
        )
    most = max(asked.trials, there.trials)
    return replace(there, trials=most, minutes=asked.minutes, repeats=asked.repeats)


def joined(folder: Path, given: Sequence[str], asked: Mapping[str, Any]) -> Request:
    """Return the search in a folder.

    Args:
        folder: of the search.
        given: names of settings, of which it needs none.
        asked: the arguments of ``labkit.search`` by name, of which this process has some of its own.

    Raises InputError if there is no search, if its data are others here, or if its trainings run code.
    """
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} without --space; --join takes all from the search")
    _number_of_trials(asked, {})
    if (request := read_request(folder)) is None:
        raise InputError(f"--join {folder} has no search; give --space and the other settings to begin one")
    manifest = load_manifest(Path(request.fixed["data_dir"]), request.fixed["dataset"])
    if manifest.checksum != request.data_checksum:
        raise InputError(
            f"--join {folder}: {manifest.directory} has other data than the search; copy its own"
        )
    for _, _, values in _ends(request.space):
        config = config_of(request.preset, with_values(request.fixed, values))
        for name, value in acting(config).items():
            flag = fields_by_name()[name].flag
            raise InputError(
                f"--join {folder} has trainings with {flag} {short(value)}, which runs "
                "a file or opens ports; to allow it, give --space and the other settings of the search, too"
            )
    return request


def plan_search(
    space: Any,
    flags: Mapping[str, Any],
    asked: Mapping[str, Any],
    folder: Path | None,
    signals: Sequence[int],
) -> tuple[Path, Request]:
    """Decide what a search does, and in which folder.

    Args:
        space: as ``labkit.search`` takes it.
        flags: of ``labkit train``, for all trials.
        asked: the other arguments of ``labkit.search`` by name.
        folder: of the search; None derives it from the settings, so that the same call finds it again.
        signals: that asked this process to stop, also while it prepares a data set.

    Raises InputError for what can't be searched or trained, and where the folder has something else.
    """
    flags = by_field(flags)
    for name in _INSTEAD.keys() & flags.keys():
        raise InputError(f"{fields_by_name()[name].flag} is {short(flags[name])}; {_INSTEAD[name]}")
    # A grid of nothing is one trial, of several seeds.
    of_seeds = argument("--sampler", asked["sampler"], str) == "grid" and not space and asked["seeds"] != 1
    dimensions = {} if of_seeds else parse_space(space, flags)
    trials, workers = _number_of_trials(asked, dimensions), asked["workers"]
    first = {name: one.ends[0] for name, one in dimensions.items()}
    config = config_of(asked["preset"], with_values(flags, first))
    refuse_cluster(config)
    named, manifest = find_data_set(config, signals)
    check_fits(config.with_steps_for(manifest.count("train")), manifest)  # by no fault of the space
    if not manifest.count("validation"):
        raise InputError(
            f"{manifest.dataset} has no validation images, by which trials are compared; prepare some: "
            f"{validation_command(manifest)}"
        )
    fixed = {name: with_whole_paths(config).flat()[name] for name in flags} | named
    preset = asked["preset"]
    if isinstance(preset, str) and preset.endswith(".json"):
        preset = str(Path(preset).absolute())
    preset = AUTO if fits_the_data(preset, fixed) else preset
    files = _files_of_ends(preset, fixed, dimensions, manifest)
    config = config_of(preset, with_values(fixed, first)).with_steps_for(manifest.count("train"))
    last = config.run.seed + asked["seeds"] + asked["repeats"] - 1
    if last >= MOST:
        seed = config.run.seed
        raise InputError(f"--seed is {seed}, and the last one of the trials {last}; allowed: below {MOST:,}")
    if (gpus := config.distribution).num_gpus and not gpus.simulate_missing_gpus and has_no_gpu():
        raise missing_gpus_error(gpus.num_gpus, 0)
    if stops := config.run.early_stopping_patience:
        instead = _INSTEAD["early_stopping_patience"]
        raise InputError(f"--preset has early_stopping_patience {stops}; {instead}")
    steps, every = config.run.train_steps, config.run.validate_every_steps
    if asked["halving"] != "none" and every and every >= steps:
        raise InputError(
            f"--halving is {asked['halving']}, but with --validate-every-steps {every} nothing tells trials "
            f"apart before the last of {steps} steps; validate more often"
        )
    brief, eta, seconds = asked["rung_seconds"], asked["eta"], tuple[float, ...]()
    rungs = _rungs(steps, trials, asked["halving"], eta, 1 if brief else every or 1)
    often = rungs[0]
    if brief:
        seconds = tuple(brief * eta**rung for rung in range(len(rungs) - 1))
        rungs, often = (steps,), math.ceil(steps / _VALIDATIONS)
    objective = _objective(asked["objective"], config, manifest)
    searched = next((name for name in dimensions if name.startswith("loss")), "")
    if searched and objective == "loss":
        raise InputError(
            f"--objective is 'loss' with --space {searched}: two losses can't be compared; name a metric"
        )
    fixed = {name: value for name, value in fixed.items() if name not in ("epochs", "steps_range", "seed")}
    fixed |= {"train_steps": steps, "evaluate_test": False}
    if config.run.best_by or objective != _objective(None, config, manifest):
        fixed["best_by"] = objective
    if asked["halving"] != "none" and not every:
        fixed["validate_every_steps"] = often
    if workers > 1:
        fixed.setdefault("num_intra_threads", max(1, usable_cores() // workers))
    request = Request(
        space=dimensions,
        rungs=rungs,
        rung_seconds=seconds,
        objective=objective,
        direction="minimize" if is_minimized(objective) else "maximize",
        trials=trials,
        seed=config.run.seed,
        in_flight=asked["in_flight"] or workers,
        preset=preset,
        fixed=fixed,
        data_checksum=manifest.checksum,
        # What a preset means may change: its file, or in another labkit.
        code=config.fingerprint(digest_of(files)) if preset else digest_of(files),
        command=shlex.join([Path(sys.argv[0]).name, *without_secrets(sys.argv[1:])]),
        created=time.time(),
        **{name: asked[name] for name in ("sampler", "halving", "eta", "minutes", "seeds", "repeats")},
    )
    known = json.dumps(request.identity(), sort_keys=True, default=asdict)
    digest = hashlib.sha256(known.encode()).hexdigest()[:8]
    folder = folder or home.home() / "searches" / f"{manifest.dataset}-{request.sampler}-{digest}"
    request = merged(folder, request)
    check_disk_space(folder, TRIAL_BYTES, "--output")
    plan_run(config_of(preset, with_values(request.fixed, first) | {"job_dir": str(folder / "new")}))
    return folder, request


def _number_of_trials(asked: Mapping[str, Any], space: Mapping[str, Dimension]) -> int:
    """Return the number of trials. Raises InputError for what isn't allowed among the numbers and names."""
    for name, least in _LOWEST.items():
        value, flag = asked[name], "--" + name.replace("_", "-")
        allowed = f"a whole number of at least {least} below {MOST:,}"
        found = argument(flag, value, int, optional=name in ("trials", "in_flight"), allowed=allowed)
        if found is not None and found < least:
            raise InputError(f"{flag} is {value}; allowed: {allowed}")
    if asked["workers"] > (most := 4 * usable_cores()) and has_no_gpu():
        raise InputError(f"--workers is {asked['workers']}; allowed: at most {most}, 4 for each core here")
    for name in ("minutes", "patience", "rung_seconds"):
        value, flag, allowed = asked[name], "--" + name.replace("_", "-"), "a number above 0"
        found = argument(flag, value, float, optional=True, allowed=allowed)
        if found is not None and not found > 0:
            raise InputError(f"{flag} is {value:g}; allowed: {allowed}")
    for name, known in _NAMES.items():
        allowed = ", ".join(known)
        if argument(f"--{name}", asked[name], str, allowed=allowed) not in known:
            raise InputError(f"--{name} is {short(asked[name])}; allowed: {allowed}")
    if asked["rung_seconds"] is not None and asked["halving"] == "none":
        raise InputError(
            f"--rung-seconds is {asked['rung_seconds']:g}; it needs --halving successive or asha"
        )
    trials, successive = asked["trials"], asked["halving"] == "successive"
    if asked["sampler"] == "grid":
        if ranges := [name for name, one in space.items() if not one.choices]:
            raise InputError(f"--sampler is grid and {ranges[0]} a range; list its values: {ranges[0]}=A,B,C")
        size = math.prod(len(one.choices) for one in space.values())
        trials = min(size, trials or size)
    trials = trials or (_MOST_TRIALS if asked["minutes"] and not successive else _DEFAULT_TRIALS)
    if successive and trials < asked["eta"]:
        raise InputError(f"--trials is {trials} with --halving successive; allowed: at least {asked['eta']}")
    return int(trials)


def _rungs(steps: int, trials: int, halving: str, eta: int, every: int) -> tuple[int, ...]:
    """Return the steps at which trials are compared, each about ``eta`` times the one before.

    The last one is that of a whole training, ``steps``. Of ``trials`` some reach it; at most three are before
    it. ``every``: steps between two validations, of which rungs are multiples.
    """
    if halving == "none":
        return (steps,)
    before = min(3, max(1, int(math.log(trials, eta) + 1e-9)))
    at, rungs = math.ceil(steps / eta**before), list[int]()
    while (rung := math.ceil(at / every) * every) < steps:
        rungs.append(rung)
        at = rung * eta
    return (*rungs, steps)


def _files_of_ends(
    preset: str | None, fixed: Mapping[str, Any], space: Mapping[str, Dimension], manifest: Manifest
) -> dict[str, bytes]:
    """Return the files of code that trials run, by their paths.

    Raises InputError for an end of a setting that can't be trained beside the first values of the others.
    """
    files = dict[str, bytes]()
    for name, value, values in _ends(space):
        try:
            config = config_of(preset, with_values(fixed, values))
            check_fits(config, manifest)
            files |= files_of(config)
        except InputError as error:
            raise InputError(f"--space {name}, value {value}: {error}") from None
    return files


def _ends(space: Mapping[str, Dimension]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each end of each setting: its name, its value, and the values of all with the others' first."""
    first = {name: one.ends[0] for name, one in space.items()}
    for name, one in space.items():
        for value in one.ends:
            yield name, value, first | {name: value}
    if not space:
        yield "none", None, {}


def config_of(preset: str | None, flags: Mapping[str, Any]) -> Config:
    """Return the configuration of ``labkit train`` with these flags. Raises InputError."""
    return Config.from_flat(requested_values(preset, flags)[0])


def _objective(name: str | None, config: Config, manifest: Manifest) -> str:
    """Return the metric of the validation that decides. Raises InputError for another name."""
    if name is None:
        return _MEASURES.get(manifest.targets, "f1_micro")
    own, named = config.run.metrics or "", argument("--objective", name, str)
    known = [*EVALUATION_METRICS, *filter(None, own.split(","))]
    if named not in known and (fields_by_name()["metrics"].code_of(own) is None or named.startswith("test")):
        raise InputError(
            f"--objective is {named!r}; allowed: a metric of the validation, never of the test: "
            f"{', '.join(known)}; --metrics adds others"
        )
    return named
