"""What a training uses and where it writes: its data set (prepared, a launcher's choice, or to be prepared
now) and its run directory (new, to be resumed or finished). The run directory isn't written here.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.config import recorded_config
from labkit.config.data_sets import AUTO, GENERATED, fold_name, prepare_command
from labkit.data.folds import is_made_of
from labkit.data.inputs import choose_input_path, resolved_crop
from labkit.data.manifest import Manifest, find_manifest, load_manifest, verify_shards
from labkit.data.prepare import prepare
from labkit.data.resolve import find_data_set, resolve
from labkit.errors import InputError, short
from labkit.models.weight_source import find_weight_source, read_name_map
from labkit.parts.code import check_unchanged
from labkit.parts.trust import digest_of, files_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import check_checkpoint
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import check_disk_space, check_writable, holds_something_else
from labkit.run_directory.files import read_object
from labkit.run_directory.find import missing_config
from labkit.startup.quiet_import import import_tensorflow
from labkit.training.checks import check_fits, check_targets

BYTES_PER_METRICS_ROW = 400  # a train row (measured: below 300) and its TensorBoard event
BASE_BYTES = 64 * 2**20  # test-set predictions (about 30 MB), logs and other files


_ANOTHER = "name another directory, or discard that run with --overwrite"


def place_run(
    config: Config,
    manifest: Manifest,
    *,
    files: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
    cluster: str = "",
    accept_changed_code: bool = False,
) -> tuple[Config, RunDirectory, str]:
    """Choose the run directory: ``job_dir``, or a name derived from the configuration if that is None.

    ``files``: the files of code that the training runs, as they were read; None reads them.
    ``accept_changed_code``: whether a run may go on with other code than it was trained with.

    Returns the configuration with actual data set, input path, crop and directories; the run directory; and
    its state: ``new``, ``resumable`` or ``finished``. Raises InputError if the directory can't be written,
    holds something else or a run with another configuration, or if the disk is too full.
    """
    # The name comes from the requested values, so that it doesn't depend on how ``auto`` resolves.
    files = files_of(config) if files is None else files
    name = _run_name(config, manifest.dataset, cluster, files)
    run = RunDirectory(config.run.job_dir or home.runs_home() / name)
    # A folder that nobody chose isn't recorded: it is found again after labkit's home was moved.
    chosen = None if config.data.data_dir is None else str(manifest.directory.parent)
    config = config.replace({"dataset": manifest.dataset, "job_dir": str(run.path), "data_dir": chosen})
    config = with_recorded_choices(config, overwrite)
    config = config.replace({"input_path": choose_input_path(manifest, config.data.input_path)})
    config = with_crop(config, manifest)
    check_place(config, run)
    run_state = "new"
    if run.exists():
        recorded = with_crop(recorded_config(run), manifest)
        if not overwrite:
            run_state = _state_of(run, recorded, config)
            if not accept_changed_code:
                way_out = f"{_ANOTHER}, undo the change, or go on with it: --accept-changed-code"
                check_unchanged(run, config, files, way_out)
    if run_state == "new" and config.transfer.start_from is not None:
        find_weight_source(config.transfer.start_from, config.model)
        if config.transfer.name_map is not None:
            read_name_map(config.transfer.name_map)
    return config, run, run_state


def with_crop(config: Config, manifest: Manifest) -> Config:
    return config.replace({"random_resized_crop": resolved_crop(config.data, manifest.image_shape)})


def _state_of(run: RunDirectory, recorded: Config, config: Config) -> str:
    differences = recorded.differences(config)
    status = run.read_status()
    if differences:
        way_out = _ANOTHER
        steps = config.run.train_steps
        if (
            status is not None
            and len(differences) == 1
            and 0 < status.step < steps != recorded.run.train_steps
        ):
            way_out = f"to go on from it to step {steps}: {fork_command(run, status.step, train_steps=steps)}"
        raise InputError(
            f"--job-dir {run.path} holds a run with another configuration: {'; '.join(differences)}; "
            + way_out
        )
    if status is not None and status.state == "finished":
        return "finished"
    if run.pulled_path.is_file():  # it would begin at step 0, and its rows would no longer count
        check_checkpoint(run.checkpoints_path, "last")
    return "resumable"


def fork_command(run: RunDirectory, step: int, **settings: Any) -> str:
    """Return the command that goes on from a step of a run with other settings, in another directory."""
    name = run.name if run.path.parent == home.runs_home() else str(run.path)
    given = [f"{setting}={value}" for setting, value in settings.items()]
    return shlex.join(["labkit", "fork", name, "--at", str(step), "--set", *given])


def nothing_left(run: RunDirectory) -> str:
    """Return the sentence that a run is finished, and how to go on from it."""
    status = run.read_status()
    step = status.step if status else 0
    how = run.read_environment().get("description", "unknown devices")
    more = f"for more steps: {fork_command(run, step, train_steps=2 * step)}"
    if not run.checkpoint_steps():
        more = "its checkpoints are gone, so it can't go on; --overwrite trains it anew"
        if there := read_object(run.pulled_path).get("from"):
            more = f"its checkpoints weren't pulled; to go on, copy their folder from {short(there)}"
    return f"nothing left to do: {run.path} is finished at step {step}; it was trained on {how}; {more}"


def check_place(config: Config, run: RunDirectory) -> None:
    """Raise InputError if ``run`` can't be written, holds something else, or has too little disk space."""
    check_writable(run.path, "--job-dir")
    check_folders(run)
    check_disk_space(run.path, BASE_BYTES + config.run.train_steps * BYTES_PER_METRICS_ROW)
    if reason := missing_config(run):
        raise InputError(f"--job-dir {run.path}: {reason}, or name another directory")
    if not run.exists() and holds_something_else(run):
        raise InputError(f"--job-dir {run.path} is neither empty nor a run; name another directory")


def _run_name(config: Config, dataset: str, cluster: str, files: Mapping[str, bytes]) -> str:
    """Return a readable name, determined by the configuration.

    Several GPUs or a ``cluster`` give a different name, so that they start a run of their own instead of
    finding the finished run of one process. (With ``--job-dir``, a run resumes on any number of replicas.)
    """
    resolved = config.replace({"dataset": dataset})
    replicas = config.distribution.num_gpus or 1
    suffix = (f"-{replicas}gpus" if replicas > 1 else "") + (f"-{cluster}" if cluster else "")
    values, known = config.flat(), fields_by_name()
    own = [info.code_of(values[name]) for name, info in known.items() if info.identity]
    paths = [path for path in own if path is not None]
    code = digest_of({path: files[path] for path in paths}) if paths else ""
    return f"{model_name(config.model)}-{dataset}-{resolved.fingerprint(code)}{suffix}"


def with_recorded_choices(config: Config, overwrite: bool) -> Config:
    """Replace ``auto`` by the data set and input path recorded in the run, if it is resumed."""
    automatic = [name for name in ("dataset", "input_path") if getattr(config.data, name) == "auto"]
    if not automatic or config.run.job_dir is None or overwrite:
        return config
    run = RunDirectory(config.run.job_dir)
    check_writable(run.path, "--job-dir")
    if not run.exists():
        return config
    recorded = recorded_config(run).flat()
    return config.replace({name: recorded[name] for name in automatic})


# A launcher passes its choice of data set to its tasks, for the run's record: {"asked_for": …, "note": …}
DATA_CHOICE = "LABKIT_DATA_CHOICE"


def launchers_choice() -> tuple[str, str] | None:
    """Return the requested data set and the note that this task's launcher passed on, or None."""
    text = os.environ.get(DATA_CHOICE, "")
    if not text:
        return None
    try:
        choice = json.loads(text)
        return str(choice["asked_for"]), str(choice["note"])
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f"{DATA_CHOICE} is {text[:200]!r}; only labkit cluster local sets it: unset it"
        ) from None


def data_directory(config: Config) -> Path:
    """Return the configured folder of data sets, or labkit's own."""
    named = config.data.data_dir
    return home.expanded(named).absolute() if named else home.data_home()


def prepared_data_set(
    config: Config, *, may_prepare: bool, announce: Callable[[str], None] = print
) -> tuple[Manifest | None, str]:
    """Return the manifest and a line that says which data set it is; None if it has to be prepared.

    With ``--fold`` it is the data set that the fold is, which is prepared here: that takes seconds.

    A data directory that the user names must hold the data set already. Labkit's own directory may lack it if
    ``may_prepare``. Raises InputError if the data set is missing, or if the loss doesn't fit its labels.
    """
    dataset, data_dir = config.data.dataset, data_directory(config)
    is_named = config.data.data_dir is not None
    manifest, note = find_data_set(dataset, data_dir, may_prepare=may_prepare and not is_named)
    check_targets(config, manifest)
    if manifest is not None:
        return _with_fold(config, manifest, note, announce if may_prepare else None)
    if dataset not in (AUTO, *GENERATED):
        load_manifest(data_dir, dataset)  # raises an error that says what to do
    way_out = prepare_command(dataset, str(data_dir))
    if is_named:
        name = "" if dataset == AUTO else f" {dataset!r}"
        raise InputError(
            f"--data-dir {data_dir} holds no prepared data set{name}; prepare it with: {way_out}"
        )
    if not may_prepare:  # otherwise several tasks would prepare it at once
        raise InputError(f"no data set is prepared in {data_dir}; in a cluster prepare it first: {way_out}")
    return None, ""


def with_data_set(
    config: Config,
    *,
    may_prepare: bool,
    announce: Callable[[str], None],
    before_preparing: Callable[[Config], None],
) -> tuple[Config, Manifest, str]:
    """Return the configuration with its number of steps, its data set, and a line on the choice."""
    manifest, why = prepared_data_set(config, may_prepare=may_prepare, announce=announce)
    if manifest is None:
        before_preparing(config)
        import_tensorflow()
        manifest, why = resolve(config.data.dataset, data_directory(config), announce=announce)
        manifest, why = _with_fold(config, manifest, why, announce)
    config = config.replace({"fold": manifest.source.get("fold")})
    config = config.with_steps_for(manifest.count("train"))
    check_fits(config, manifest)
    return config, manifest, why


def _with_fold(
    config: Config, manifest: Manifest, note: str, announce: Callable[[str], None] | None
) -> tuple[Manifest, str]:
    """Return the fold of a data set that is asked for, and the line on both.

    ``announce``: takes lines about preparing it; None: it isn't prepared here. Raises InputError.
    """
    fold, own = config.data.fold, manifest.source.get("fold")
    if fold in (None, own):
        return manifest, note
    if own is not None:
        raise InputError(
            f"--fold is {fold}, but --dataset {manifest.dataset} is fold {own} itself; leave --fold out, or "
            f"give --dataset {manifest.source['location']}"
        )
    name, folder = fold_name(manifest.dataset, fold), manifest.directory.parent
    found = find_manifest(folder, name)
    if found is not None and found.source.get("fold") != fold:
        raise InputError(f"--fold {fold} would be {found.directory}, which holds other data; rename those")
    if found is None or not is_made_of(manifest, found):
        if announce is None:
            command = prepare_command(name, str(folder))
            raise InputError(f"--fold {fold} isn't prepared; in a cluster do it first: {command}")
        found = prepare(name, folder, progress=announce).manifest
    return found, f"{note}; fold {fold} in {found.directory}"


def check_shards(manifest: Manifest) -> None:
    """Raise InputError if files of the data set are damaged or missing."""
    damaged = verify_shards(manifest)
    if damaged:
        raise InputError(
            f"{manifest.directory}: damaged or missing {', '.join(damaged)}; rebuild with: "
            f"{manifest.prepare_command}"
        )
