"""Train and evaluate runs: what the command line, the notebook and Python call.

This module imports TensorFlow only when there is work for it, so that bad input is refused at once.
"""

from collections.abc import Callable
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest, load_manifest
from labkit.data.resolve import resolve
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.quiet_import import import_tensorflow
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsReader, append_evaluation, selection_metric
from labkit.training.admission import check_cluster, check_place, check_writable, recorded_config
from labkit.training.resolution import (
    admit_to_cluster,
    admitted,
    data_directory,
    launchers_choice,
    prepared_data_set,
    with_recorded_choices,
)
from labkit.training.result import TrainResult

__all__ = ["chosen_step", "evaluate", "evaluation_inputs", "train"]


def train(
    config: Config,
    *,
    overwrite: bool = False,
    announce: Callable[[str], None] = print,
    asked_for: str | None = None,
    data_note: str | None = None,
    task: ClusterTask | None = None,
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
        task: this process's place in a cluster, as one that trains, or that coordinates the training; None
            without a cluster. Every task calls this with the same configuration.

    Raises InputError for what can't be run, PeerLost where the cluster loses a task that it needs.
    """
    if task is not None:
        return _train_in_cluster(
            config, task, overwrite=overwrite, announce=announce, asked_for=asked_for, data_note=data_note
        )
    asked_for = asked_for or config.data.dataset
    config = with_recorded_choices(config, overwrite)
    data_dir = data_directory(config)
    manifest, note = prepared_data_set(config, data_dir)
    admission = None
    if manifest is not None:
        config, admission = admitted(config, manifest, overwrite)
        if admission.found == "finished":
            return _already_finished(admission.run)
    elif config.run.job_dir is not None:
        check_place(config, RunDirectory(config.run.job_dir))

    import_tensorflow()
    from labkit.training.session import prepare_devices
    from labkit.training.start import train_run

    plan = prepare_devices(config)
    if manifest is None:
        manifest, note = resolve(config.data.dataset, data_dir, announce=announce)
    announce(note)
    if admission is None:
        config, admission = admitted(config, manifest, overwrite)
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


def _train_in_cluster(
    config: Config,
    task: ClusterTask,
    *,
    overwrite: bool,
    announce: Callable[[str], None],
    asked_for: str | None,
    data_note: str | None,
) -> TrainResult:
    check_cluster(config, task, overwrite)
    chosen = launchers_choice()
    asked_for = asked_for or chosen.get("asked_for") or config.data.dataset
    config, manifest, note, admission = admit_to_cluster(config)
    if admission.found == "finished":
        return _already_finished(admission.run)
    if task.is_chief:
        announce(note)
    import_tensorflow()
    from labkit.training.start import train_in_cluster

    note = data_note or chosen.get("note") or note
    return train_in_cluster(config, manifest, task, admission.run, data_note=note, asked_for=asked_for)


def _already_finished(run: RunDirectory) -> TrainResult:
    """Report a finished run with the test of the weights that it chose, whatever was evaluated since."""
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    status = run.read_status()
    step = status.step if status else 0
    validations = reader.split("validation")
    # The first of the best, as the loop chooses.
    chosen = max(validations, key=selection_metric)["step"] if validations else step
    tests = {row["step"]: row for row in reader.split("test")}
    how = run.read_environment().get("description", "unknown devices")
    message = f"nothing left to do: {run.path} is finished at step {step}; it was trained on {how}"
    return TrainResult("finished", run, step, message, tests.get(chosen), did_work=False)


def evaluate(
    job_dir: str,
    *,
    split: str = "test",
    checkpoint: str = "best",
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    num_intra_threads: int | None = None,
    test_time_augmentation: str | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run and write the predictions for the dashboard.

    Args:
        job_dir: the run directory.
        split: ``test``, ``validation`` or ``train``.
        checkpoint: ``best`` (on validation; the newest where there was none), ``last``, or a step.
        data_dir: where the data set is; None: where the run was trained with it.
        eval_batch_size: examples per step; None: the run's.
        num_intra_threads: threads inside one operation, 0: TensorFlow's choice; None: the run's.
        test_time_augmentation: ``none``, ``mirror`` or ``mirror_and_shift``; None: the run's.

    Returns the content of ``predictions/<split>.json``. The figures are added to the run's evaluations, once
    for each split and step. Raises InputError where the run, the checkpoint or the data isn't there.
    """
    run = RunDirectory(job_dir)
    config, manifest = evaluation_inputs(
        run,
        split,
        data_dir=data_dir,
        eval_batch_size=eval_batch_size,
        num_intra_threads=num_intra_threads,
        test_time_augmentation=test_time_augmentation,
    )
    import_tensorflow()
    from labkit.training.checkpoint_evaluator import CheckpointEvaluator, check_same_data
    from labkit.training.checkpoints import CheckpointStore
    from labkit.training.predictions import write_predictions

    store = CheckpointStore(run.checkpoints_path)
    step = chosen_step(store, checkpoint, run)
    check_same_data(run, store.state(step), manifest)
    evaluator = CheckpointEvaluator(run, config, manifest, split, num_gpus=1)
    evaluator.load(step)
    evaluation = evaluator.evaluate()
    figures = write_predictions(run, evaluation, manifest, checkpoint_step=step)
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    if split == "train" or (split, step) not in {(row.get("split"), row.get("step")) for row in reader}:
        append_evaluation(run.metrics_path, evaluator.row(evaluation), reader.resume_points)
    return figures


def evaluation_inputs(
    run: RunDirectory,
    split: str,
    *,
    data_dir: str | None,
    eval_batch_size: int | None,
    num_intra_threads: int | None,
    test_time_augmentation: str | None = None,
) -> tuple[Config, Manifest]:
    """Return what is needed to evaluate a run here; None means as recorded in the run.

    Raises InputError where the run can't be read or written to, or its data aren't prepared here.
    """
    config = recorded_config(run)
    check_writable(run.path, "RUN")
    asked = {
        "data_dir": data_dir,
        "eval_batch_size": eval_batch_size,
        "num_intra_threads": num_intra_threads,
        "test_time_augmentation": test_time_augmentation,
    }
    changed = {name: value for name, value in asked.items() if value is not None}
    config = config.replace(changed | {"job_dir": str(run.path)})
    manifest = load_manifest(data_directory(config), config.data.dataset)
    if not manifest.splits.get(split):
        raise InputError(
            f"--split is {split!r}; {manifest.dataset} is prepared with: {', '.join(manifest.splits)}"
        )
    return config, manifest


def chosen_step(store: Any, checkpoint: str, run: RunDirectory) -> int:
    """Return the step that ``best``, ``last`` or a number means. Raises InputError where there is none."""
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
