"""The form of a new run: its texts, what they say, and the command that they make. Needs no Streamlit."""

import math
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app import state
from labkit.cluster.local import LocalCluster
from labkit.config import Config, fields_by_name
from labkit.config.architectures import default_depth
from labkit.config.config import flags_of, recorded_config
from labkit.config.data_sets import AUTO, BUILT_IN, GENERATED, is_own, prepare_command
from labkit.config.fields import OF_THE_NETWORK, FieldInfo
from labkit.config.presets import AUTO as FITTED
from labkit.config.presets import PRESETS, preset_values
from labkit.data.manifest import Manifest, find_manifest, load_manifest, prepared_names
from labkit.data.of_run import data_dir_of_run, folder_to_prepare
from labkit.data.recipe import fits_the_data, requested_values
from labkit.distributed.heartbeat import read_heartbeats
from labkit.errors import InputError
from labkit.experiments.search.files import REQUEST
from labkit.experiments.search.space import parse_space
from labkit.home import data_home, home, runs_home
from labkit.parts.trust import acting
from labkit.run_directory import RunDirectory
from labkit.run_directory.disk import check_writable
from labkit.run_directory.summary import RunSummary
from labkit.training.checks import check_fits, check_targets, check_together, refuse_cluster

# The form has a name for job_dir and numbers of processes for the rest.
LEFT_OUT = ("job_dir", "sync")
DATA_FIELDS = ("dataset", "data_dir")
LONGEST_NAME = 200  # bytes; file systems take 255

Shown = str | bool  # what a widget holds


@dataclass
class Draft:
    """What the form shows.

    Args:
        preset: its name, or "".
        shown: what the widget of each field holds; "" of an optional field is None.
        name: of the run as typed; "" takes a suggestion.
        stem: what the suggestion begins with.
        workers, ps: processes; 1 and 0 train in one.
        seeds: trainings with other seeds, beside several values in one field.
        at_once: how many of them train at a time.
    """

    preset: str = ""
    shown: dict[str, Shown] = field(default_factory=dict)
    name: str = ""
    stem: str = ""
    workers: int = 1
    ps: int = 0
    seeds: int = 1
    at_once: int = 1

    @property
    def lists(self) -> dict[str, str]:
        """The fields of one number in which several are typed, parted by commas, and their texts."""
        fields = ((name, text) for name, text in self.shown.items() if isinstance(text, str) and "," in text)
        return {name: text for name, text in fields if form_fields()[name].type in (int, float)}

    @property
    def is_search(self) -> bool:
        """Whether it stands for several trainings, which ``labkit search`` makes one after the other."""
        return self.seeds > 1 or bool(self.lists)

    @property
    def folder(self) -> Path:
        """Where the run, or the search, has its directory."""
        return home() / "searches" if self.is_search else runs_home()

    def run(self) -> RunDirectory:
        """Return the directory of the run: of the typed name, or of a suggested one that is free."""
        return RunDirectory(self.folder / (self.name.strip() or self.suggested_name()))

    def suggested_name(self) -> str:
        """Return a name that no run has yet, such as ``smoke-2``."""
        stem = self.stem or self.preset or str(self.shown.get("model") or "run")
        return free_name(stem, lambda name: (self.folder / name).exists())


def free_name(wanted: str, is_taken: Callable[[str], bool]) -> str:
    """Return a name that isn't taken: ``wanted``, or with a number behind it, such as ``smoke-2``."""
    numbered = re.fullmatch(r"(.+)-(\d{1,9})", wanted)
    name, stem, number = wanted, *((numbered[1], int(numbered[2])) if numbered else (wanted, 1))
    while is_taken(name):
        number += 1
        name = f"{stem}-{number}"
    return name


@dataclass(frozen=True)
class Checked:
    """What a draft says.

    Args:
        given: the values that differ from those of the preset, or the defaults.
        errors: a sentence for each field that is wrong.
        problem: what is wrong with the whole; "" where it can be started.
        arguments: of ``labkit``; empty where a field can't be read.
        trainings: how many it stands for.
        config: of the first of them; None where there is a problem.
    """

    given: dict[str, Any]
    errors: dict[str, str]
    problem: str
    arguments: list[str]
    trainings: int = 1
    config: Config | None = None

    @property
    def command(self) -> str:
        """The command as a line for a shell."""
        return shlex.join(["labkit", *self.arguments]) if self.arguments else ""


def form_fields() -> dict[str, FieldInfo]:
    """Return the fields of the form by name, in the order of the command line's help."""
    known, allowed = fields_by_name(), state.allows_code()
    hidden = {
        name
        for name, info in known.items()
        if info.acts and not allowed and (info.is_path or not info.is_code)  # others name built-in parts, too
    }
    return {
        name: info
        for name, info in known.items()
        if info.role != "task" and not {name, info.of_code} & {*LEFT_OUT, *hidden}
    }


def base_values(preset: str, shown: Mapping[str, Shown] | None = None) -> dict[str, Any]:
    """Return the value of each field of the form before anybody changes it. Raises InputError.

    Args:
        preset: its name, or "".
        shown: what the form holds; ``auto`` fits its data set.
    """
    values = {name: info.default for name, info in form_fields().items()}
    if preset == FITTED:
        data = {name: text for name in DATA_FIELDS if (text := (shown or {}).get(name))}
        fitted, _ = requested_values(preset, data)
        return values | {name: value for name, value in fitted.items() if name not in data}
    return values | (dict(preset_values(preset)) if preset else {})


def shown_value(value: Any) -> Shown:
    """Return what the widget of a field holds for a value."""
    return value if isinstance(value, bool) else "" if value is None else str(value)


def new_draft(preset: str = "", data: Mapping[str, Shown] | None = None) -> Draft:
    """Return the form of a preset, or with the defaults. ``data``: what it holds of the data set."""
    shown = {name: shown_value(value) for name, value in base_values(preset, data).items()}
    return Draft(preset, shown | dict(data or {}))


def draft_of(run: RunDirectory) -> Draft:
    """Return the form with the configuration of a run. Raises InputError if that is damaged."""
    config = recorded_config(run)
    values = {name: value for name, value in config.flat().items() if name in form_fields()}
    if values["num_layers"] == default_depth(config.model.model, config.model.block):
        values["num_layers"] = None
    try:
        values["data_dir"], _ = data_dir_of_run(run, config)
    except InputError:  # the form says what is missing
        folder = folder_to_prepare(run, config)
        values["data_dir"] = None if folder == data_home() else str(folder)
    if values["input_path"] == "memory":  # which auto takes again
        values["input_path"] = "auto"
    if (run.path.parent / REQUEST).is_file():  # a trial, which alone must not see the test images
        values["evaluate_test"] = True
    tasks = [name.partition(":")[0] for name in read_heartbeats(run.cluster_path)]
    # The preset that leaves the shortest command.
    bases = {name: base_values(name) for name in ("", *PRESETS)}
    preset = min(bases, key=lambda name: sum(value != bases[name][key] for key, value in values.items()))
    shown = {name: shown_value(value) for name, value in values.items()}
    workers = tasks.count("worker") or 1
    return Draft(preset, shown, stem=run.name, workers=workers, ps=tasks.count("ps"))


def left_out(run: RunDirectory) -> str:
    """Return the run's settings that the form doesn't take, in a sentence; "" where it takes all."""
    values = {} if state.allows_code() else acting(recorded_config(run))
    words = ", ".join(f"{fields_by_name()[name].flag} {value}" for name, value in values.items())
    return f"Without {words}, which the form takes where --allow-code was given." if words else ""


def with_preset(draft: Draft, preset: str) -> Draft:
    """Return the form filled by another preset; name and processes stay, with ``auto`` the data set too."""
    data = {name: draft.shown[name] for name in DATA_FIELDS} if preset == FITTED else None
    return replace(draft, preset=preset, shown=new_draft(preset, data).shown, stem="")


def with_data_set(draft: Draft, dataset: str) -> Draft:
    """Return the form for another data set. With ``auto``, what nobody has changed fits it again."""
    chosen = replace(draft, shown=draft.shown | {"dataset": dataset})
    if draft.preset != FITTED:
        return chosen
    before = with_preset(draft, FITTED).shown
    changed = {name: value for name, value in chosen.shown.items() if value != before[name]}
    filled = with_preset(chosen, FITTED)
    return replace(filled, shown=filled.shown | changed)


def with_rates(draft: Draft, factor: float) -> Draft:
    """Return the form with the learning rates of its optimizer, where they are numbers, times ``factor``."""
    rates: dict[str, Shown] = {}
    for name in ("learning_rate", *(["muon_learning_rate"] * (draft.shown.get("optimizer") == "muon"))):
        with suppress(ValueError):
            rates[name] = f"{float(draft.shown.get(name) or '') * factor:.6g}"
    return replace(draft, shown=draft.shown | rates)


def data_sets(draft: Draft) -> tuple[dict[str, str], str]:
    """Return the data sets that can be trained on now, with what is known of each, and how to get others.

    A data set is offered if it is prepared or is generated when it is needed.
    """
    directory, own = _data_directory(draft), not draft.shown.get("data_dir")
    known = {AUTO: "auto · CIFAR-10 if it is there or can be downloaded, else shapes"}
    for name in (*BUILT_IN, *filter(is_own, prepared_names(directory))):
        if manifest := prepared(directory, name):
            height, width, _ = manifest.image_shape
            size = f", {manifest.num_classes:,} classes, {width}×{height} pixels" if is_own(name) else ""
            known[name] = f"{name} · prepared{size}"
        elif own and name in GENERATED:
            known[name] = f"{name} · generated at the start"
    where = None if own else str(directory)
    missing = "Pictures of your own: " + prepare_command("NAME", where)
    if "cifar10" not in known:
        missing = f"CIFAR-10 isn't prepared: {prepare_command('cifar10', where)} · {missing}"
    return known, missing


def _data_directory(draft: Draft) -> Path:
    named = draft.shown.get("data_dir")
    return Path(os.path.expanduser(str(named))).absolute() if named else data_home()


def prepared(directory: Path, name: str) -> Manifest | None:
    """Return the data set of a name that is prepared in a directory; None without one, or a damaged one."""
    try:
        return find_manifest(directory, name)
    except (InputError, OSError, ValueError):
        return None


# ---- what the form says --------------------------------------------------------------------------------


def check(draft: Draft) -> Checked:
    """Read and check the form with the functions of the command line, as far as they need no TensorFlow.

    The rest is checked by the command itself before it trains.
    """
    named = draft.preset
    if not named and fits_the_data(None, {"dataset": draft.shown.get("dataset")}):
        named = "estimator_2017"  # what the form shows; without a preset the command would fit the data set
    base, given, errors = base_values(named, draft.shown), {}, {}
    lists = dict[str, list[Any]]()
    for name, info in form_fields().items():
        try:
            if name in draft.lists:
                if info.type is float and re.fullmatch(r"\s*[-+]?\d+,\d+\s*", draft.lists[name]):
                    one, other = draft.lists[name].strip().split(",")
                    raise InputError(
                        f"{info.flag} is {draft.lists[name].strip()!r}; write {one}.{other} for one number, "
                        f"or {one}, {other} with a space for two"
                    )
                lists[name] = [read_field(info, part) for part in draft.lists[name].split(",")]
                parse_space({name: draft.lists[name]}, {})
                continue
            value = read_field(info, draft.shown.get(name, shown_value(base[name])))
        except InputError as error:
            asked = f"--space {name}={draft.lists.get(name)}: "
            errors[name] = str(error).replace(asked, f"{info.flag} is {draft.lists.get(name)}; ", 1)
        else:
            if value != base[name]:
                given[name] = value
    if errors:
        return Checked(given, errors, "", [])
    problem, run, config = "", draft.run(), None
    first = {name: values[0] for name, values in lists.items()}
    others = [first | {name: value} for name, values in lists.items() for value in values[1:]]
    try:
        check_name(draft.name.strip() or run.name)
        for values in (*others, first):
            config = Config.from_flat(requested_values(named or None, given | values)[0])
            _check_whole(config, draft)
        check_writable(run.path, "--job-dir")
    except InputError as error:
        problem = str(error)
    if flag := re.match(r"--([a-z0-9-]+)", problem):
        name = flag[1].replace("-", "_")
        errors = {name: problem} if name in form_fields() else {}
    preset = ["--preset", named] if named else []
    if draft.is_search:
        space = (
            ["--space", *(f"{name}={draft.lists[name].replace(' ', '')}" for name in lists)] if lists else []
        )
        words = ["--sampler", "grid", *space, "--seeds", str(draft.seeds), "--repeats", "0"]
        words += ["--workers", str(draft.at_once), "--output", str(run.path)]
        arguments = ["search", *preset, *flags_of(given), *words]
    else:
        arguments = [*_launcher(draft), "train", *preset, *flags_of(given), "--job-dir", str(run.path)]
    count = draft.seeds * math.prod(map(len, lists.values()))
    return Checked(given, errors, problem, arguments, count, None if problem else config)


def read_field(info: FieldInfo, shown: Shown) -> Any:
    """Return the value that a widget's text stands for. Raises InputError as the command line does."""
    if info.optional and isinstance(shown, str) and not shown.strip():
        return None
    value = info.check(info.from_flag(shown.strip() if isinstance(shown, str) else shown))
    if info.is_code and info.file_of(value) is not None and not state.allows_code():
        raise InputError(
            f"{info.flag} is {value!r}, a file of code, which this dashboard doesn't run; start it with "
            "LABKIT_ALLOW_CODE=1, or train from the command line"
        )
    if info.is_path and value is not None:  # the command works from any folder
        return str(Path(os.path.expanduser(value)).absolute())
    return value


def check_name(name: str) -> None:
    """Raise InputError where a run can't have this name: it is one folder, which no list hides."""
    invisible = any(unicodedata.category(character) in ("Cc", "Cf") for character in name)
    if "/" in name or invisible or name.startswith(".") or not 0 < len(name.encode()) <= LONGEST_NAME:
        raise InputError(
            f"the name is {name[:100]!r}; allowed: up to {LONGEST_NAME} visible characters without / that "
            "don't begin with a dot"
        )


SAME = (  # what the time of a step depends on most
    *(name for name, info in fields_by_name().items() if info.fork == OF_THE_NETWORK),
    "dataset",
    "train_batch_size",
    "accumulate_steps",
    "ghost_batches",
    "precision",
    "progressive_resizing",
    "optimizer",
    "num_gpus",
)


def expected(checked: Checked, draft: Draft, runs: Iterable[RunSummary]) -> tuple[float, RunSummary] | None:
    """Return the seconds that the trainings of a form take one after the other, and the run that tells it.

    It is the newest run of one process that didn't fail, with the same network, data, batch and precision;
    validations come on top. None where there is no such run, the number of steps isn't known, or several
    workers share the cores.
    """
    if checked.config is None or _launcher(draft) or draft.lists.keys() & set(SAME):
        return None
    config, data = checked.config, prepared(_data_directory(draft), checked.config.data.dataset)
    if data:
        config = config.with_steps_for(data.count("train"))
    elif config.run.epochs:
        return None
    values = config.flat()
    for run in sorted(runs, key=lambda run: run.last_active, reverse=True):
        # Several processes have another speed, and a run that failed may have ended before it had one.
        tells = run.state != "failed" and not RunDirectory(run.path).cluster_path.is_dir()
        if tells and run.examples_per_second and all(run.values.get(name) == values[name] for name in SAME):
            examples = values["train_steps"] * config.data.images_per_step
            return checked.trainings * examples / run.examples_per_second, run
    return None


def _launcher(draft: Draft) -> list[str]:
    return [] if (draft.workers, draft.ps) == (1, 0) else LocalCluster(draft.workers, draft.ps).launcher()


def _check_whole(config: Config, draft: Draft) -> None:
    if draft.is_search and _launcher(draft):
        raise InputError(
            "several workers train one run at a time; give one value in each field, and one seed"
        )
    cluster = LocalCluster(draft.workers, draft.ps)
    if _launcher(draft):
        check_together(config, num_workers=cluster.workers, asynchronous=cluster.asynchronous)
    else:
        refuse_cluster(config)
    dataset, directory = config.data.dataset, _data_directory(draft)
    manifest = None if dataset == AUTO else prepared(directory, dataset)
    check_targets(config, manifest)
    if manifest is not None:
        check_fits(config, manifest)
        return
    if dataset not in data_sets(draft)[0]:
        load_manifest(directory, dataset)  # raises an error that says what to do
