"""Train and evaluate runs: what the command line, the notebook and Python call.

This module imports TensorFlow only when there is work for it, so that bad input is refused at once.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config
from labkit.data.manifest import Manifest, find_manifest, load_manifest
from labkit.errors import InputError
from labkit.metrics import MetricsReader, MetricsWriter
from labkit.notices import import_tensorflow
from labkit.runs import ACTIVE_STATES, RunDirectory, RunLock
from labkit.training.admission import Admission, admit, check_writable, recorded_config
from labkit.training.result import TrainResult

__all__ = ["evaluate", "train", "with_recorded_dataset"]


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
    config = with_recorded_dataset(config, overwrite)
    if config.run.job_dir is not None:
        check_writable(RunDirectory(config.run.job_dir).path, "--job-dir")
    data_dir = _data_dir(config)
    manifest, note = _prepared(config, data_dir)
    admission = None
    if manifest is not None:
        config, admission = _admitted(config, manifest, overwrite)
        if admission.found == "finished":
            return _already_finished(admission.run)

    import_tensorflow()
    from labkit.training.loop import train_run
    from labkit.training.session import prepare_devices

    plan = prepare_devices(config)
    if manifest is None:
        from labkit.data.resolve import resolve

        lines: list[str] = []
        manifest = resolve(config.data.dataset, data_dir, data_dir_is_default=True, announce=lines.append)
        note = lines[-1] if lines else ""
    if note:
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


def with_recorded_dataset(config: Config, overwrite: bool) -> Config:
    """Let ``dataset=auto`` mean, for a run that exists, the data set that it was started with."""
    if config.data.dataset != "auto" or config.run.job_dir is None or overwrite:
        return config
    run = RunDirectory(config.run.job_dir)
    if not run.exists():
        return config
    return config.replace({"dataset": recorded_config(run).data.dataset})


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
    config = config.replace({"dataset": manifest.dataset})
    admission = admit(config, manifest.dataset, overwrite=overwrite)
    return config.replace({"job_dir": str(admission.run.path)}), admission


def _already_finished(run: RunDirectory) -> TrainResult:
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    tests = reader.split("test")
    status = run.read_status()
    step = status.step if status else 0
    message = f"nothing left to do: {run.path} is finished at step {step}"
    test = tests[-1] if tests else None
    return TrainResult("finished", run, step, message, test, did_work=False)


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
    changed = {
        name: value
        for name, value in (("data_dir", data_dir), ("eval_batch_size", eval_batch_size))
        if value is not None
    }
    # Evaluation takes the devices of this machine, whichever the run was trained on.
    here = {
        "num_gpus": None,
        "simulate_missing_gpus": False,
        "variable_strategy": "CPU",
        "data_format": "auto",
    }
    config = config.replace(changed | here | {"job_dir": str(run.path)})
    manifest = load_manifest(_data_dir(config), config.data.dataset)
    if not manifest.splits.get(split):
        raise InputError(
            f"--split is {split!r}; {manifest.dataset} is prepared with: {', '.join(manifest.splits)}"
        )

    import_tensorflow()
    from labkit.training.checkpoints import CheckpointStore
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
    steps = store.steps()
    if not steps:
        raise InputError(f"{run.path} has no checkpoint yet; train it further")
    if checkpoint == "last":
        return steps[-1]
    if checkpoint == "best":
        best = store.state(steps[-1]).best_step
        return best if best in steps else steps[-1]
    if not checkpoint.isdigit() or int(checkpoint) not in steps:
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
    from labkit.training.telemetry import is_recorded

    try:
        if not is_recorded(run, row["split"], row["step"]):
            metrics = MetricsWriter(run.metrics_path)
            metrics.append([row])
            metrics.close()
    finally:
        lock.release()
