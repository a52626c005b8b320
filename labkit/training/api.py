"""Train and evaluate runs: what the command line, the notebook and Python call.

This module imports TensorFlow only when there is work for it, so that bad input is refused at once.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config
from labkit.data.inputs import choose_input_path
from labkit.data.manifest import Manifest, find_manifest, load_manifest, verify_shards
from labkit.errors import InputError
from labkit.metrics import MetricsReader, append_evaluation
from labkit.notices import import_tensorflow
from labkit.runs import RunDirectory
from labkit.training.admission import (
    Admission,
    admit,
    check_cluster,
    check_place,
    check_writable,
    recorded_config,
    run_directory,
)
from labkit.training.result import TrainResult
from labkit.training.topology import ClusterTask

__all__ = [
    "DATA_CHOICE",
    "admit_to_cluster",
    "ensure_data_set",
    "evaluate",
    "evaluation_inputs",
    "train",
    "with_recorded_choices",
]

# A launcher that chose the data set tells its tasks so, for the run's record: {"asked_for": …, "note": …}
DATA_CHOICE = "LABKIT_DATA_CHOICE"


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
    chosen = _launchers_choice()
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


def _launchers_choice() -> dict[str, str]:
    """Return what a launcher said of the data set; nothing where there is none."""
    text = os.environ.get(DATA_CHOICE, "")
    if not text:
        return {}
    try:
        choice = json.loads(text)
        return {name: str(choice[name]) for name in ("asked_for", "note")}
    except (ValueError, LookupError, TypeError):
        raise InputError(
            f"{DATA_CHOICE} is {text[:200]!r}; only labkit cluster local sets it: unset it"
        ) from None


def admit_to_cluster(config: Config, *, overwrite: bool = False) -> tuple[Config, Manifest, str, Admission]:
    """Decide what a task of a cluster trains, and where; every task comes to the same result.

    Returns the configuration with everything in it decided, the data set, the line that says which it is, and
    the admission of the run directory. Raises InputError for what can't be run, and where no data set is
    prepared: many tasks would prepare it at once.
    """
    config = with_recorded_choices(config, overwrite)
    data_dir = _data_dir(config)
    manifest, note = _prepared(config, data_dir, may_download=False)
    if manifest is None:
        option = "" if config.data.dataset == "auto" else f" --dataset {config.data.dataset}"
        raise InputError(
            f"no data set is prepared in {data_dir}; in a cluster prepare it first: "
            f"labkit data prepare --data-dir {data_dir}{option}"
        )
    config, admission = _admitted(config, manifest, overwrite)
    return config, manifest, note, admission


def ensure_data_set(
    config: Config, *, overwrite: bool = False, announce: Callable[[str], None] = print
) -> Config:
    """Return ``config`` with a data set that is prepared; a missing one is made, by the rules of ``train``.

    Raises InputError where what is asked for can't be had.
    """
    config = with_recorded_choices(config, overwrite)
    data_dir = _data_dir(config)
    manifest, note = _prepared(config, data_dir)
    if manifest is None:
        if config.run.job_dir is not None:
            check_place(config, RunDirectory(config.run.job_dir))
        import_tensorflow()
        from labkit.data.resolve import resolve

        manifest = resolve(config.data.dataset, data_dir, data_dir_is_default=True, announce=announce)
    else:
        announce(note)
    return config.replace({"dataset": manifest.dataset})


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


def _prepared(config: Config, data_dir: Path, *, may_download: bool = True) -> tuple[Manifest | None, str]:
    """Return the manifest and the line that says which data set it is; None where it must be made first.

    A data directory that the user names must hold what is asked for; the default one is filled as
    ``dataset`` allows.
    """
    dataset = config.data.dataset
    for name in ("cifar10", "shapes") if dataset == "auto" else (dataset,):
        manifest = find_manifest(data_dir, name)
        if name == "shapes" and dataset == "auto" and config.data.data_dir is None and may_download:
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
    num_intra_threads: int | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run and write the predictions for the dashboard.

    Args:
        job_dir: the run directory.
        split: ``test``, ``validation`` or ``train``.
        checkpoint: ``best`` (on validation; the newest where there was none), ``last``, or a step.
        data_dir: where the data set is; None: where the run was trained with it.
        eval_batch_size: examples per step; None: the run's.
        num_intra_threads: threads inside one operation, 0: TensorFlow's choice; None: the run's.

    Returns the content of ``predictions/<split>.json``. The figures are added to the run's evaluations, once
    for each split and step. Raises InputError where the run, the checkpoint or the data isn't there.
    """
    run = RunDirectory(job_dir)
    config, manifest = evaluation_inputs(
        run, split, data_dir=data_dir, eval_batch_size=eval_batch_size, num_intra_threads=num_intra_threads
    )
    import_tensorflow()
    from labkit.training.checkpoint_evaluator import CheckpointEvaluator, check_same_data
    from labkit.training.checkpoints import CheckpointStore
    from labkit.training.predictions import write_predictions

    store = CheckpointStore(run.checkpoints_path)
    step = _chosen_step(store, checkpoint, run)
    check_same_data(run, store.state(step), manifest)
    evaluator = CheckpointEvaluator(run, config, manifest, split, num_gpus=1)
    evaluator.load(step)
    evaluation = evaluator.evaluate()
    figures = write_predictions(run, evaluation, manifest, checkpoint_step=step)
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    if split == "train" or (split, step) not in {(row.get("split"), row.get("step")) for row in reader}:
        append_evaluation(run.metrics_path, evaluator.row(evaluation), reader.seams)
    return figures


def evaluation_inputs(
    run: RunDirectory,
    split: str,
    *,
    data_dir: str | None,
    eval_batch_size: int | None,
    num_intra_threads: int | None,
) -> tuple[Config, Manifest]:
    """Return what is needed to evaluate a run here; None means as recorded in the run.

    Raises InputError where the run can't be read or written to, or its data aren't prepared here.
    """
    config = recorded_config(run)
    check_writable(run.path, "RUN")
    asked = {"data_dir": data_dir, "eval_batch_size": eval_batch_size, "num_intra_threads": num_intra_threads}
    changed = {name: value for name, value in asked.items() if value is not None}
    config = config.replace(changed | {"job_dir": str(run.path)})
    manifest = load_manifest(_data_dir(config), config.data.dataset)
    if not manifest.splits.get(split):
        raise InputError(
            f"--split is {split!r}; {manifest.dataset} is prepared with: {', '.join(manifest.splits)}"
        )
    return config, manifest


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
