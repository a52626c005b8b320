"""Train and evaluate runs: what the command line, the notebook and Python call.

This module imports TensorFlow only when there is work for it, so that bad input is refused at once.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest, find_manifest, load_manifest, verify_shards
from labkit.errors import InputError
from labkit.metrics import MetricsReader, MetricsWriter
from labkit.notices import import_tensorflow
from labkit.runs import ACTIVE_STATES, RunDirectory, RunLock
from labkit.training.admission import (
    Admission,
    admit,
    check_place,
    check_writable,
    recorded_config,
    run_directory,
)
from labkit.training.result import TrainResult

__all__ = ["evaluate", "train", "with_recorded_choices"]


def train(
    config: Config,
    *,
    overwrite: bool = False,
    announce: Callable[[str], None] = print,
    asked_for: str | None = None,
    data_note: str | None = None,
) -> TrainResult:
    """Train a run to its end, from wherever it stands.

    Everything that can be refused is refused before anything is written: first what needs no TensorFlow,
    then devices, then the data set.

    Args:
        config: what to train; ``job_dir`` None derives a directory from it.
        overwrite: discard the run that is there.
        announce: takes lines for people before the run's own console starts.
        asked_for, data_note: where the caller resolved the data set itself: what the user named, and the
            line that said which data set was chosen and why. Both are recorded in the run.

    Raises InputError for what can't be run.
    """
    asked_for = asked_for or config.data.dataset
    config = with_recorded_choices(config, overwrite)
    data_dir = _data_dir(config)
    manifest, note = _prepared(config, data_dir)
    admission = None
    if manifest is not None:
        config, admission = _admitted(config, manifest, overwrite)
        if admission.found == "finished":
            return _already_finished(admission.run)
    elif config.run.job_dir is not None:
        check_place(config, RunDirectory(config.run.job_dir))

    import_tensorflow()
    from labkit.training.session import prepare_devices
    from labkit.training.start import train_run

    plan = prepare_devices(config)
    if manifest is None:
        from labkit.data.resolve import resolve

        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            announce(line)

        manifest = resolve(config.data.dataset, data_dir, data_dir_is_default=True, announce=say)
        note = lines[-1] if lines else ""
    else:
        announce(note)
    if admission is None:
        config, admission = _admitted(config, manifest, overwrite)
        if admission.found == "finished":
            return _already_finished(admission.run)
    return train_run(
        config,
        manifest,
        plan,
        admission.run,
        overwrite=overwrite,
        data_note=data_note or note,
        asked_for=asked_for,
    )


def _data_dir(config: Config) -> Path:
    named = config.data.data_dir
    return Path(named).expanduser().absolute() if named else home.data_home()


def with_recorded_choices(config: Config, overwrite: bool) -> Config:
    """Let ``auto`` mean, for a run that goes on, the data set and the input path that it was started with."""
    automatic = [name for name in ("dataset", "input_path") if getattr(config.data, name) == "auto"]
    if not automatic or config.run.job_dir is None or overwrite:
        return config
    run = RunDirectory(config.run.job_dir)
    check_writable(run.path, "--job-dir")
    if not run.exists():
        return config
    recorded = recorded_config(run).flat()
    return config.replace({name: recorded[name] for name in automatic})


def _prepared(config: Config, data_dir: Path) -> tuple[Manifest | None, str]:
    """Return the manifest and the line that says which data set it is; None where it must be made first.

    A data directory that the user names must hold what is asked for; the default one is filled as
    ``dataset`` allows.
    """
    dataset = config.data.dataset
    for name in ("cifar10", "shapes") if dataset == "auto" else (dataset,):
        manifest = find_manifest(data_dir, name)
        if name == "shapes" and dataset == "auto" and config.data.data_dir is None:
            break  # auto tries the download first
        if manifest is not None:
            return manifest, f"data set: {name} in {manifest.directory}"
    if dataset == "cifar10":
        load_manifest(data_dir, dataset)
    if config.data.data_dir is not None:
        option = "" if dataset == "auto" else f" --dataset {dataset}"
        raise InputError(
            f"--data-dir {data_dir} holds no prepared data set{option and f' {dataset!r}'}; "
            f"prepare it with: labkit data prepare --data-dir {data_dir}{option}"
        )
    return None, ""


def _admitted(config: Config, manifest: Manifest, overwrite: bool) -> tuple[Config, Admission]:
    """Return the configuration with everything in it decided, and the directory it is admitted to."""
    examples = manifest.count("train")
    if config.data.train_batch_size > examples:
        raise InputError(
            f"--train-batch-size is {config.data.train_batch_size}; allowed: at most {examples}, "
            f"the training examples of {manifest.dataset} in {manifest.directory}"
        )
    # The run's name comes from what was asked for: what a machine makes of it must not change the name.
    run = run_directory(config, manifest.dataset)
    config = config.replace(
        {"dataset": manifest.dataset, "job_dir": str(run.path), "data_dir": str(manifest.directory.parent)}
    )
    config = with_recorded_choices(config, overwrite)
    config = config.replace({"input_path": choose_input_path(manifest, config.data.input_path)})
    admission = admit(config, manifest.dataset, overwrite=overwrite)
    if admission.found != "finished":
        damaged = verify_shards(manifest)
        if damaged:
            raise InputError(
                f"{manifest.directory}: damaged or missing {', '.join(damaged)}; rebuild with: "
                f"labkit data prepare --dataset {manifest.dataset} --data-dir {config.data.data_dir}"
            )
    return config, admission


def _already_finished(run: RunDirectory) -> TrainResult:
    """Report a finished run with the test of the weights that it chose, whatever was evaluated since."""
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    status = run.read_status()
    step = status.step if status else 0
    validations = reader.split("validation")
    # The first of the best, as the loop chooses.
    chosen = max(validations, key=lambda row: row["accuracy"])["step"] if validations else step
    tests = {row["step"]: row for row in reader.split("test")}
    message = f"nothing left to do: {run.path} is finished at step {step}"
    return TrainResult("finished", run, step, message, tests.get(chosen), did_work=False)


def evaluate(
    job_dir: str,
    *,
    split: str = "test",
    checkpoint: str = "best",
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run and write the predictions for the dashboard.

    Args:
        job_dir: the run directory.
        split: ``test``, ``validation`` or ``train``.
        checkpoint: ``best`` (on validation; the newest where there was none), ``last``, or a step.
        data_dir: where the data set is; None: where the run was trained with it.
        eval_batch_size: examples per step; None: the run's.

    Returns the content of ``predictions/<split>.json``. A figure is added to the run's metrics unless a
    training is writing them. Raises InputError where the run, the checkpoint or the data isn't there.
    """
    run = RunDirectory(job_dir)
    config = recorded_config(run)
    check_writable(run.path, "RUN")
    changed = {
        name: value
        for name, value in (("data_dir", data_dir), ("eval_batch_size", eval_batch_size))
        if value is not None
    }
    config = config.replace(changed | {"job_dir": str(run.path)})
    manifest = load_manifest(_data_dir(config), config.data.dataset)
    if not manifest.splits.get(split):
        raise InputError(
            f"--split is {split!r}; {manifest.dataset} is prepared with: {', '.join(manifest.splits)}"
        )

    import_tensorflow()
    from labkit.training.checkpoints import CheckpointStore
    from labkit.training.devices import num_gpus_found
    from labkit.training.evaluate import evaluate_split
    from labkit.training.predictions import write_predictions
    from labkit.training.session import make_session, prepare_devices

    store = CheckpointStore(run.checkpoints_path)
    step = _chosen_step(store, checkpoint, run)
    recorded = store.state(step).data_checksum
    if recorded != manifest.checksum:
        raise InputError(
            f"{run.path} was trained on other data than {manifest.directory} holds now (checksum "
            f"{recorded[:12]} there, {manifest.checksum[:12]} here); name its data set with --data-dir"
        )
    # One device of this machine is enough, whichever the run was trained on.
    here = {"simulate_missing_gpus": False, "variable_strategy": "CPU", "data_format": "auto"}
    config = config.replace(here | {"num_gpus": min(1, num_gpus_found())})
    session = make_session(config, manifest, prepare_devices(config))
    store.restore(session.model_checkpoint(), step, partial=True)
    evaluation = evaluate_split(
        session.strategy,
        session.predict_step,
        manifest,
        split,
        global_batch_size=config.data.eval_batch_size,
    )
    figures = write_predictions(run, evaluation, manifest, checkpoint_step=step)
    epoch = step * config.data.train_batch_size / manifest.count("train")
    _append_if_idle(run, evaluation.metrics() | {"step": step, "epoch": epoch, "wall_time": time.time()})
    return figures


def _chosen_step(store: Any, checkpoint: str, run: RunDirectory) -> int:
    if checkpoint == "best":
        return store.chosen_step()
    steps = store.steps()
    if not steps:
        raise InputError(f"{run.path} has no checkpoint yet; train it further")
    if checkpoint == "last":
        return steps[-1]
    if not checkpoint.isdecimal() or int(checkpoint) not in steps:
        known = ", ".join(str(step) for step in steps)
        raise InputError(f"--checkpoint is {checkpoint!r}; allowed: best, last, or one of the steps {known}")
    return int(checkpoint)


def _append_if_idle(run: RunDirectory, row: dict[str, Any]) -> None:
    """Add a row to the metrics, once, where no training holds the run: only one process writes that file."""
    status = run.read_status()
    lock = RunLock(run)
    if (status is not None and status.state in ACTIVE_STATES and status.liveness() in ACTIVE_STATES) or (
        not lock.acquire()
    ):
        return
    from labkit.training.telemetry import recorded_evaluations

    try:
        if (row["split"], row["step"]) not in recorded_evaluations(run):
            metrics = MetricsWriter(run.metrics_path)
            metrics.append([row])
            metrics.close()
    finally:
        lock.release()
