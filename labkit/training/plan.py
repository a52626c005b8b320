"""All decisions before work starts, as data: a class for each kind of work.

Command line, cluster tasks, launcher, notebook, comparison, profile and evaluation all start from a plan, so
they share the same checks. Devices come last, because importing TensorFlow takes seconds and bad input should
be refused before that. Nothing is written, except a data set that has to be prepared.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.callbacks.callback import Callback, callbacks_of, checked_callbacks
from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.config.data_sets import AUTO, GENERATED
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run
from labkit.distributed.cpu import has_no_gpu, missing_gpus_error
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.parts.code import allow, with_whole_paths
from labkit.parts.trust import check_approved, files_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import check_checkpoint
from labkit.run_directory.directory import check_folders
from labkit.run_directory.disk import check_writable
from labkit.run_directory.metrics import own_test
from labkit.run_directory.reader import read_metrics
from labkit.startup.quiet_import import check_keras_backend, import_tensorflow
from labkit.training.checks import check_cluster, check_layout, refuse_cluster
from labkit.training.place import (
    check_place,
    check_shards,
    launchers_choice,
    nothing_left,
    place_run,
    with_crop,
    with_data_set,
    with_recorded_choices,
)

if TYPE_CHECKING:
    from labkit.distributed.devices import Devices


@dataclass(frozen=True)
class TrainResult:
    """The result of a call of training.

    ``state``: finished, interrupted or failed. ``step``: completed steps. ``message``: one line for users.
    ``test``: the metrics row of the test set; None if it wasn't evaluated. ``signal_number``: the signal
    that interrupted the run. ``did_work``: False if the run was already finished.
    """

    state: str
    run: RunDirectory
    step: int
    message: str
    test: dict[str, Any] | None = None
    signal_number: int | None = None
    did_work: bool = True


@dataclass(frozen=True)
class RunPlan:
    """What a process needs to know of a run that others train, or that is finished.

    Attributes:
        config: resolved: it names data set, input path and directories.
        manifest: the prepared data set.
        run: the run directory.
        run_state: of ``run``: ``new``, ``resumable`` or ``finished``.
        asked_for: the data set as the user named it, perhaps ``auto``.
        data_note: a line that says which data set was chosen, and why.
        task: this process's place in a cluster; None without one.
        overwrite: whether to discard an existing run.
        callbacks: the user's, called during the training.
        files: content of the files that they are from, by path.
    """

    config: Config
    manifest: Manifest
    run: RunDirectory
    run_state: str
    asked_for: str
    data_note: str
    task: ClusterTask | None = None
    overwrite: bool = False
    callbacks: tuple[Callback, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(RunPlan):
    """What a process needs that trains a run.

    Attributes:
        devices: of this process's replicas.
        data_format: ``channels_last`` or ``channels_first``, decided with the devices.
    """

    devices: "Devices"
    data_format: str


@dataclass(frozen=True)
class Measurement:
    """What a process needs that trains some steps and writes no run. Attributes: as those of TrainingPlan."""

    config: Config
    manifest: Manifest
    data_note: str
    devices: "Devices"
    data_format: str


@dataclass(frozen=True)
class EvaluationPlan:
    """What a process needs that evaluates checkpoints. ``data_note`` is empty unless the data have moved."""

    config: Config
    manifest: Manifest
    run: RunDirectory
    data_note: str


def plan_training(config: Config, *, announce: Callable[[str], None] = print, **settings: Any) -> RunPlan:
    """Decide the data set, the run directory and the devices of a training.

    Args:
        config: the requested configuration.
        announce: takes lines about slow work.
        settings: those of ``plan_run``, except ``cluster``.

    Returns a TrainingPlan, or a RunPlan if the run is finished.
    Raises InputError, before anything is written, if the configuration can't be trained.
    """
    early: list[tuple[Devices, str]] = []

    def before_preparing(config: Config) -> None:  # too few GPUs are refused before minutes of download
        early.append(decide_devices(config, settings.get("task")))

    plan = plan_run(config, announce=announce, before_preparing=before_preparing, **settings)
    return plan if plan.run_state == "finished" else with_devices(plan, *early)


def refreshed(plan: RunPlan) -> RunPlan:
    """Return the plan with ``run_state`` as it is now: a plan may be trained twice, as in a notebook."""
    _, _, run_state = place_run(plan.config, plan.manifest, files=plan.files, overwrite=plan.overwrite)
    again = RunPlan(**(_fields(plan) | {"run_state": run_state}))
    decided = (plan.devices, plan.data_format) if isinstance(plan, TrainingPlan) else None
    return again if run_state == "finished" else with_devices(again, decided)


def with_devices(plan: RunPlan, decided: "tuple[Devices, str] | None" = None) -> TrainingPlan:
    """Return the plan with the devices of this process, perhaps already ``decided``. Raises InputError."""
    devices, data_format = decided or decide_devices(plan.config, plan.task)
    return TrainingPlan(**_fields(plan), devices=devices, data_format=data_format)


def plan_run(
    config: Config,
    *,
    task: ClusterTask | None = None,
    cluster: str = "",
    overwrite: bool = False,
    accept_changed_code: bool = False,
    callbacks: Sequence[Callback] = (),
    approved: str | None = None,
    announce: Callable[[str], None] = print,
    before_preparing: Callable[[Config], None] = lambda config: None,
) -> RunPlan:
    """Decide the data set and the run directory of a training, for a process that computes nothing itself.

    Args:
        config: the requested configuration.
        task: this process's place in a cluster, or the chief's for a launcher.
        cluster: suffix of the run's name. Only a launcher gives it, and then prepares the data set.
        overwrite: whether to discard an existing run.
        accept_changed_code: whether an existing run may go on with changed code of its network.
        callbacks: to call during the training, after those of ``--callbacks``.
        approved: digest of the files of code that were checked, if they were (``labkit.parts.trust``).
        announce: takes lines about slow work.
        before_preparing: is called before a data set is prepared.

    Raises InputError, before anything is written, if the configuration can't be trained.
    """
    check_keras_backend()
    launches = bool(cluster)
    asked_for, note = config.data.dataset, ""
    if task is None:
        refuse_cluster(config)
    else:
        check_cluster(config, task)
        if not launches:
            if overwrite:
                raise InputError(
                    "--overwrite in a cluster would discard the run again at every restart; remove the "
                    "directory first (labkit cluster local does so by itself)"
                )
            asked_for, note = launchers_choice() or (asked_for, note)
    callbacks = checked_callbacks(callbacks)
    config = with_whole_paths(config)
    files = files_of(config)
    check_approved(files, approved)
    allow(files)
    callbacks = (*callbacks_of(config, files), *callbacks)
    config = with_recorded_choices(config, overwrite)

    def first(config: Config) -> None:
        if config.run.job_dir is not None:
            check_place(config, RunDirectory(config.run.job_dir))
        before_preparing(config)

    config, manifest, why = with_data_set(
        config, may_prepare=task is None or launches, announce=announce, before_preparing=first
    )
    steps = config.run.train_steps
    if asked_for == AUTO and manifest.dataset in GENERATED and steps == type(config.run).train_steps:
        why += f"; {steps:,} steps, made for cifar10, take hours: --dataset {manifest.dataset} fits them"
    config, run, run_state = place_run(
        config,
        manifest,
        files=files,
        overwrite=overwrite,
        cluster=cluster,
        accept_changed_code=accept_changed_code,
    )
    if run_state != "finished":
        check_shards(manifest)
    return RunPlan(
        config, manifest, run, run_state, asked_for, note or why, task, overwrite, tuple(callbacks), files
    )


def plan_data(
    config: Config,
    *,
    overwrite: bool = False,
    announce: Callable[[str], None] = print,
    before_preparing: Callable[[Config], None] = lambda config: None,
) -> tuple[Config, Manifest, str]:
    """Find or prepare the data set of a training that writes no run here.

    With ``auto`` and the directory of a run it is that run's data set, unless the run is to be overwritten.

    Returns the resolved configuration, the data set, and a line that says which one was chosen, and why.
    Raises InputError if the configuration doesn't fit the data, or is one of a cluster.
    """
    check_keras_backend()
    refuse_cluster(config)
    config = with_recorded_choices(config, overwrite)
    config, manifest, note = with_data_set(
        config, may_prepare=True, announce=announce, before_preparing=before_preparing
    )
    check_shards(manifest)
    return with_crop(config.replace({"dataset": manifest.dataset}), manifest), manifest, note


def plan_measurement(config: Config, *, announce: Callable[[str], None] = print) -> Measurement:
    """Plan to train some steps without a run. Raises InputError if the configuration can't be trained."""
    early: list[tuple[Devices, str]] = []
    config = with_whole_paths(config)
    allow(files_of(config))

    def before_preparing(config: Config) -> None:
        early.append(decide_devices(config))

    config, manifest, note = plan_data(config, announce=announce, before_preparing=before_preparing)
    return Measurement(config, manifest, note, *(early or [decide_devices(config)])[0])


def on_one_device(config: Config, *, num_gpus: int = 1) -> "tuple[Config, Devices, str]":
    """Return the configuration on one device: a GPU if one is found and ``num_gpus`` is 1, else the CPU.

    Returns its devices and data format as well. Raises InputError if the device can't run it.
    """
    import_tensorflow()
    from labkit.distributed.devices import num_gpus_found

    here = {"simulate_missing_gpus": False, "variable_strategy": "CPU", "data_format": "auto"}
    config = config.replace(here | {"num_gpus": min(num_gpus, num_gpus_found())})
    return config, *decide_devices(config, trains=False)


def plan_evaluation(
    run: RunDirectory,
    split: str,
    *,
    checkpoint: str | None = None,
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    num_intra_threads: int | None = None,
    test_time_augmentation: str | None = None,
) -> EvaluationPlan:
    """Plan the evaluation of checkpoints of ``run`` in this process; None means the run's recorded value.

    ``checkpoint``: best, last or a step, if it must be there already.

    Raises InputError if the run can't be read or written to, or if its data set isn't prepared here.
    """
    config = recorded_config(run)
    check_writable(run.path, "RUN")
    check_folders(run)
    given = {
        "eval_batch_size": eval_batch_size,
        "num_intra_threads": num_intra_threads,
        "test_time_augmentation": test_time_augmentation,
    }
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "tensorflow" in sys.modules:  # perhaps with other threads, which change an evaluation only by rounding
        from labkit.startup.tf_compat import is_running

        if is_running():
            changed = {"num_intra_threads": 0, "num_inter_threads": 0} | changed
    manifest, note = data_of_run(run, config, data_dir)
    places = {"job_dir": str(run.path), "data_dir": str(manifest.directory.parent)}
    config = config.replace(changed | places)
    if not manifest.splits.get(split):
        raise InputError(
            f"--split is {split!r}; {manifest.dataset} is prepared with: {', '.join(manifest.splits)}"
        )
    if checkpoint is not None:
        check_checkpoint(run.checkpoints_path, checkpoint)
    return EvaluationPlan(config, manifest, run, note)


def _fields(plan: RunPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in RunPlan.__dataclass_fields__}


# ---- devices and cluster -------------------------------------------------------------------------------


def decide_devices(
    config: Config, task: ClusterTask | None = None, *, trains: bool = True
) -> "tuple[Devices, str]":
    """Configure TensorFlow for this process; return its devices and the data format.

    ``trains``: whether to compute steps, with the threads that suit them.

    Raises InputError if the devices can't run the configuration.
    """
    wanted = config.distribution.num_gpus
    if wanted and task is None and not config.distribution.simulate_missing_gpus and has_no_gpu():
        raise missing_gpus_error(wanted, 0)  # before seconds of importing TensorFlow
    import_tensorflow()
    from labkit.distributed.devices import check_precision, choose_data_format, configure_tensorflow
    from labkit.startup.tf_compat import check_versions

    if task is not None:
        check_versions()
    devices = configure_tensorflow(
        config.distribution,
        deterministic=config.run.deterministic,
        task=task,
        ghosts=config.data.ghost_batches if trains else 1,
    )
    check_layout(
        config,
        num_local_replicas=devices.num_local_replicas,
        num_workers=devices.num_workers,
        asynchronous=devices.asynchronous_workers > 0,
    )
    check_precision(config.model, devices)
    # In a cluster the strategy must come before any operation, so the format is probed later.
    return devices, choose_data_format(config.model, devices, probe=task is None)


def finished_result(run: RunDirectory) -> TrainResult:
    """Return the result of a finished run, with the test metrics that it reported."""
    reader = read_metrics(run)
    status = run.read_status()
    step = status.step if status else 0
    test = own_test(reader.split("test"), None, ())
    own = None if test is None else dict(test)
    return TrainResult("finished", run, step, nothing_left(run), own, did_work=False)
