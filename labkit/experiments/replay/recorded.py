"""What a run recorded of a step, checked before work starts. Doesn't import TensorFlow."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.config.config import recorded_config
from labkit.config.fields import argument
from labkit.data.batch import StepBatch
from labkit.data.batch_of_step import batch_of_step
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run
from labkit.errors import InputError
from labkit.experiments.replay.batch import check_settings_of_step, is_asynchronous
from labkit.parts.code import check_code_of_step, code_changed_after
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import checkpoint_path
from labkit.run_directory.files import read_json
from labkit.run_directory.reader import read_metrics
from labkit.startup.quiet_import import import_tensorflow

MAX_STEPS = 1000  # that a replay makes before its own, unless told otherwise


@dataclass(frozen=True)
class Start:
    """The state that a replay starts from: after ``step`` steps, in ``folder``; None: the initial weights."""

    step: int
    folder: Path | None

    def describe(self) -> str:
        """Return what it is, in words."""
        if self.folder is None:
            return "the initial weights"
        return f"{self.folder.parent.name}/{self.folder.name}"


@dataclass(frozen=True)
class RecordedStep:
    """A step of a run that can be made again.

    ``config``: the run's, with the data set's folder. ``row``: of the metrics. ``environment``: of the run's
    last session. ``replicas``: of the sessions around the step; the last is that of the step. ``threads``:
    within an operation in the step's session, 0 for TensorFlow's choice; None if it isn't known.
    """

    run: RunDirectory
    step: int
    config: Config
    manifest: Manifest
    row: dict[str, Any]
    environment: dict[str, Any]
    start: Start
    replicas: tuple[int, ...]
    threads: int | None

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers updated the weights without waiting for each other."""
        return is_asynchronous(self.environment)

    @property
    def num_replicas(self) -> int:
        """Replicas that shared the batch."""
        return 1 if self.is_asynchronous else self.replicas[-1]

    def batch(self, *, resized: bool = True) -> StepBatch:
        """Return the batch; ``resized``: with progressive resizing, as the network saw it."""
        return _batch(self.config, self.manifest, self.step, resized=resized)


def batch_of_run(run: RunDirectory, step: int, *, data_dir: str | None = None) -> StepBatch:
    """Return the batch of a step that the run has made or will make. Needs no checkpoint.

    Raises InputError for a step outside of the run, and for a data set that is gone or has changed.
    """
    config = recorded_config(run)
    _check_number(step)
    if step > config.run.train_steps:
        raise InputError(f"--step is {step}; {run.path} ends at step {config.run.train_steps}")
    check_settings_of_step(run, step, of_data=True)
    if config.data.augment is not None:
        check_code_of_step(run, step)
    config, manifest = with_data(run, config, data_dir)
    return _batch(config, manifest, step)


def recorded_step(
    run: RunDirectory,
    step: int,
    *,
    data_dir: str | None = None,
    max_steps: int = MAX_STEPS,
) -> RecordedStep:
    """Look a step up, and choose where to start.

    Args:
        run: the run directory.
        step: from 1.
        data_dir: folder of prepared data sets; None: the run's.
        max_steps: most steps to make before this one.

    Raises InputError for a step that the run hasn't made, for a data set that is gone or has changed, and
    where the nearest checkpoint is too far away.
    """
    config = recorded_config(run)
    _check_number(step)
    rows = recorded_rows(run)
    if not rows:
        raise InputError(
            f"--step is {step}, but {run.path} has made no step yet; see its batches with --batch-only"
        )
    if step not in rows and step <= max(rows):
        raise InputError(f"the row of step {step} in {run.metrics_path} is missing or damaged; name another")
    if step not in rows:
        raise InputError(f"--step is {step}; allowed: 1 to {max(rows)}, the last step of {run.path}")
    check_settings_of_step(run, step)
    check_code_of_step(run, step)
    config, manifest = with_data(run, config, data_dir)
    start = _start(run, config, step, max_steps)
    environment = run.read_environment()
    replicas = _replicas(run, step, start, environment)
    threads = _threads(run, step, start, environment)
    return RecordedStep(run, step, config, manifest, rows[step], environment, start, replicas, threads)


def recorded_rows(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Return the rows of training steps by their step, without damaged ones."""
    reader = read_metrics(run)
    return {row["step"]: row for row in reader.split("train") if isinstance(row.get("loss"), int | float)}


def _check_number(step: Any) -> None:
    allowed = "a whole number from 1, as in the metrics"
    if argument("--step", step, int, allowed=allowed) < 1:
        raise InputError(f"--step is {step}; allowed: {allowed}")


def with_data(run: RunDirectory, config: Config, data_dir: str | None) -> tuple[Config, Manifest]:
    """Return the configuration with the data set's folder, and the data set that the run trained on."""
    manifest, note = data_of_run(run, config, data_dir)
    if note:
        print(note)
    return config.replace({"job_dir": str(run.path), "data_dir": str(manifest.directory.parent)}), manifest


def _batch(config: Config, manifest: Manifest, step: int, *, resized: bool = True) -> StepBatch:
    size = config.data.image_size_at(step - 1, config.run.train_steps) if resized else None
    if config.data.augment is not None:  # a function over tensors
        import_tensorflow()
    return batch_of_step(manifest, config.data, seed=config.run.seed, step=step, image_size=size)


def _start(run: RunDirectory, config: Config, step: int, max_steps: int) -> Start:
    """Choose the nearest state before the step. Raises InputError if it is too far, or if there is none."""
    # What --check-numerics kept is superseded for other steps: a resumed run went on from a checkpoint.
    kept = [found for found in run.numerics_steps() if found == step - 1]
    folders = dict.fromkeys(kept, run.numerics_path)
    folders |= dict.fromkeys(run.checkpoint_steps(), run.checkpoints_path)
    same_code = code_changed_after(run)
    before = [found for found in folders if same_code <= found < step]
    way_out = "--batch-only shows the batch without a checkpoint"
    if not before and config.transfer.start_from is not None:
        raise InputError(
            f"--step is {step}, but {run.path} started from other weights and has no checkpoint before that "
            f"step (its checkpoints: {', '.join(map(str, run.checkpoint_steps())) or 'none'}); {way_out}"
        )
    if not before and same_code:
        raise InputError(
            f"--step is {step}, but {run.path} keeps no checkpoint between it and step {same_code}, after "
            f"which its code changed; {way_out}"
        )
    first = max(before, default=0)
    if step - 1 - first > max_steps:
        origin = f"the checkpoint of step {first}" if before else "the initial weights"
        raise InputError(
            f"--step is {step}, which needs {counted(step - 1 - first, 'step')} from {origin}, the nearest "
            f"state of {run.path}, more than --max-steps {max_steps}; raise --max-steps; {way_out}"
        )
    return Start(first, checkpoint_path(folders[first], first) if before else None)


def _replicas(run: RunDirectory, step: int, start: Start, environment: dict[str, Any]) -> tuple[int, ...]:
    """Return the replicas of the sessions around a step, of which each could have another number.

    The session that made the step is the one that wrote the next checkpoint or kept the state before the
    step; without either it is the last session. Its number comes last.
    """
    recorded = environment.get("replicas", 1)
    last = recorded if isinstance(recorded, int) else 1
    if start.folder is None:
        before = []
    else:
        before = [_replicas_at(start.folder)]
        if start.folder.parent == run.numerics_path:
            return last, *before
    after = [found for found in run.checkpoint_steps() if found >= step][:1]
    return *before, last, *(_replicas_at(checkpoint_path(run.checkpoints_path, found)) for found in after)


def _threads(run: RunDirectory, step: int, start: Start, environment: dict[str, Any]) -> int | None:
    """Return the threads within an operation of the session that made a step, as ``_replicas`` finds it."""
    recorded = environment.get("threads")
    threads = recorded.get("intra") if isinstance(recorded, dict) else None
    after = [found for found in run.checkpoint_steps() if found >= step][:1]
    if after and (start.folder is None or start.folder.parent != run.numerics_path):
        state = read_json(checkpoint_path(run.checkpoints_path, after[0]) / "state.json")
        threads = state.get("intra_threads", threads)
    return threads if isinstance(threads, int) else None


def _replicas_at(folder: Path) -> int:
    """Return the number of replicas of the session that wrote a checkpoint."""
    path = folder / "state.json"
    try:
        return int(read_json(path)["num_replicas"])
    except LookupError:
        reason = "it is missing"
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).removeprefix(f"{path} can't be read: ")
    raise InputError(f"cannot read the number of replicas in {path}: {reason}; remove {folder}")
