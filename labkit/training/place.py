"""Where a training writes: the run directory, new, to be resumed or finished. Nothing is written here."""

import shlex
from collections.abc import Mapping
from typing import Any

from labkit import home
from labkit.config import Config, fields_by_name
from labkit.config.architectures import model_name
from labkit.config.recorded import recorded_config
from labkit.data.inputs import choose_input_path, resolved_crop
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.models.weight_source import find_weight_source, read_name_map
from labkit.parts.code import check_unchanged
from labkit.parts.trust import digest_of, files_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import check_disk_space, check_writable, holds_something_else
from labkit.run_directory.find import missing_config

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
    return "finished" if status is not None and status.state == "finished" else "resumable"


def fork_command(run: RunDirectory, step: int, **settings: Any) -> str:
    """Return the command that goes on from a step of a run with other settings, in another directory."""
    name = run.name if run.path.parent == home.runs_home() else str(run.path)
    given = [f"{setting}={value}" for setting, value in settings.items()]
    return shlex.join(["labkit", "fork", name, "--at", str(step), "--set", *given])


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
