"""Follow the checkpoints of a run from another process or machine, and evaluate each one as it appears, on
one device of this process.

The two processes share only the run directory. The training writes checkpoints atomically; the follower reads
them and appends its rows to ``evaluations.jsonl``. TensorFlow is imported once the run exists.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.config.config import recorded_config
from labkit.data.manifest import check_same_data
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import (
    RESUMES,
    VIEWS,
    append_evaluation,
    evaluation_key,
    evaluations_path,
    evaluations_that_count,
    is_superseded,
    metrics_in_words,
)
from labkit.run_directory.reader import MetricsReader, read_metrics
from labkit.run_directory.rows import RowReader
from labkit.run_directory.watch import RunWatch, Standing, wait_for_run
from labkit.startup.interruption import StopRequest, stop_on_signals
from labkit.startup.quiet_import import import_tensorflow
from labkit.tensorboard.events import EventWriter
from labkit.training.checkpoints import CheckpointStore
from labkit.training.evaluate import Evaluation, write_predictions
from labkit.training.network import Network
from labkit.training.plan import EvaluationPlan, on_one_device, plan_evaluation
from labkit.training.recorded_predictions import predictions_name


class CheckpointEvaluator:
    """Evaluates checkpoints of a run with a model that is built once.

    Args:
        plan: from ``plan_evaluation``; batch size and threads may differ from the run's.
        split: ``train``, ``validation`` or ``test``.
        num_gpus: 0 uses the CPU; 1 uses a GPU if there is one. The run may have used more devices.
        on_batch: called after each batch.

    Raises InputError if the device can't run the configuration.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        split: str,
        *,
        num_gpus: int,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._manifest = plan.run, plan.manifest
        self._config, devices, data_format = on_one_device(plan.config, num_gpus=num_gpus)
        self._split, self._on_batch = split, on_batch
        self._store = CheckpointStore(self._run.checkpoints_path)
        self._network = Network(self._config, self._manifest, devices, data_format)
        self._events: EventWriter | None = None

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        return self._store.steps()

    def load(self, step: int) -> None:
        """Load the weights of the checkpoint of ``step``. Raises InputError if it is missing or damaged."""
        self._read_at = time.time()
        self._state = self._store.restore(self._network.model_checkpoint(), step, partial=True)

    def evaluate(self) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate the loaded weights on the split.

        Returns the evaluation and its metrics row, whose ``wall_time`` is when the checkpoint was read.
        Raises InputError if the checkpoint was trained on other data, or if the run has since been started
        over with another configuration.
        """
        step = self._state.step
        check_same_data(self._manifest, self._state.data_checksum, self._run.path)
        differences = recorded_config(self._run).differences(self._config)
        if differences:
            raise InputError(
                f"{self._run.path} was started over with another configuration: {'; '.join(differences)}; "
                "give the command again"
            )
        evaluation = self._network.evaluate(self._split, on_batch=self._on_batch)
        epoch = step * self._config.data.images_per_step / self._manifest.count("train")
        return evaluation, evaluation.row() | {"step": step, "epoch": epoch, "wall_time": self._read_at}

    def write_event(self, row: dict[str, Any]) -> None:
        """Write a row for TensorBoard, in its own folder: TensorBoard follows only one file per folder."""
        if self._events is None:
            self._events = EventWriter(self._run.events_path / "evaluations", row["step"])
        self._events.scalars(row)

    def close(self) -> None:
        """Flush and close the events file."""
        if self._events is not None:
            self._events.close()


def evaluate_checkpoint(plan: EvaluationPlan, split: str, checkpoint: str) -> dict[str, Any]:
    """Evaluate one checkpoint; see ``labkit.training.train.evaluate``."""
    run, manifest = plan.run, plan.manifest
    store = CheckpointStore(run.checkpoints_path)
    step = store.step_of(checkpoint)
    check_same_data(manifest, store.state(step).data_checksum, run.path)
    evaluator = CheckpointEvaluator(plan, split, num_gpus=1)
    reader = read_metrics(run)
    known = len(reader.resume_points)
    evaluator.load(step)
    evaluation, row = evaluator.evaluate()
    row[RESUMES] = known
    name = predictions_name(run, split, step)
    metrics = write_predictions(run, evaluation, manifest, checkpoint_step=step, name=name)
    reader.poll()
    views = plan.config.run.test_time_augmentation
    if evaluation.augmented is not None and views != recorded_config(run).run.test_time_augmentation:
        row[VIEWS] = views
    if split == "train" or evaluation_key(row) not in map(evaluation_key, reader.evaluations):
        append_evaluation(run.metrics_path, row, reader.resume_points)
    return metrics


POLL_SECONDS = 1.0


@dataclass(frozen=True)
class FollowResult:
    """The result of following a run.

    ``state``: the run's state (``finished``, or another one in which it stalled), or ``stopped`` if
    ``signal_number`` ended the follower. ``evaluated``: number of checkpoints evaluated by this process.
    """

    state: str
    message: str
    evaluated: int
    signal_number: int | None = None


class _StopRequested(Exception):
    pass


def follow(
    run: str,
    *,
    split: str = "validation",
    data_dir: str | None = None,
    eval_batch_size: int | None = None,
    num_intra_threads: int | None = None,
    wait_seconds: float = 60.0,
    wait_flag: str = "--wait-seconds",
    announce: Callable[[str], None] = print,
) -> FollowResult:
    """Evaluate every checkpoint of a run that isn't evaluated yet, on the CPU, until the run ends.

    Returns when the run is finished and its last checkpoint is evaluated, at a signal, or when the run stalls
    (missing, silent, interrupted, failed or lost) for longer than ``wait_seconds``. Called again, it resumes
    where it ended.

    Args:
        run: a run directory, or a name under ``<home>/runs``; it may appear later.
        split: ``validation``, ``test`` or ``train``.
        data_dir: the folder of data sets; None means the run's.
        eval_batch_size, num_intra_threads: None means the run's.
        wait_seconds: how long a run may stall.
        wait_flag: the flag that sets ``wait_seconds``, for messages.
        announce: takes lines for users.

    Raises InputError if the run doesn't appear, its data set isn't available here, or it is started over with
    another configuration or other data.
    """
    follower = None
    with stop_on_signals() as stop:

        def pause() -> None:
            give_up = time.monotonic() + POLL_SECONDS
            while not stop and (left := give_up - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
            _check(stop)

        try:
            directory = wait_for_run(run, wait_seconds, pause, announce, wait_flag)
            plan = plan_evaluation(
                directory,
                split,
                data_dir=data_dir,
                eval_batch_size=eval_batch_size,
                num_intra_threads=num_intra_threads,
                test_time_augmentation="none",
            )
            if plan.data_note:
                announce(plan.data_note)
            announce(f"following {directory.path}: {split} of each checkpoint, on the CPU")
            import_tensorflow()

            evaluator = CheckpointEvaluator(plan, split, num_gpus=0, on_batch=lambda: _check(stop))
            watch = RunWatch(directory, wait_seconds, flag=wait_flag)
            follower = Follower(directory, split, evaluator, watch, pause, announce)
            standing = follower.follow()
        except _StopRequested:
            evaluated = follower.evaluated if follower else 0
            message = f"{stop.name}; the same command continues where this one ends"
            return FollowResult("stopped", message, evaluated, stop.signal_number)
        finally:
            if follower is not None:
                follower.close()
    return FollowResult(standing.state, standing.message, follower.evaluated)


def _check(stop: StopRequest) -> None:
    if stop:
        raise _StopRequested


# ---- checkpoints ---------------------------------------------------------------------------------------


class Follower:
    """Evaluates each checkpoint of ``run`` once, oldest first, until the run is over.

    Args:
        run: the run to follow.
        split: the split to evaluate.
        evaluator: loads and evaluates checkpoints.
        watch: tells whether the run is over.
        pause: waits a moment; called when no checkpoint is left to evaluate.
        announce: takes lines for users.
    """

    def __init__(
        self,
        run: RunDirectory,
        split: str,
        evaluator: "CheckpointEvaluator",
        watch: RunWatch,
        pause: Callable[[], None],
        announce: Callable[[str], None],
    ) -> None:
        self._run, self._split, self._evaluator = run, split, evaluator
        self._watch, self._pause, self._announce = watch, pause, announce
        self._training = MetricsReader(run.metrics_path)
        self._beside = RowReader(evaluations_path(run.metrics_path))
        self._damaged: set[int] = set()
        self._newest_first = False
        self.evaluated = 0

    def follow(self) -> Standing:
        """Evaluate until the run is over and every checkpoint has a row. Returns the run's final standing."""
        told = ""
        while True:
            # Read before the checkpoints, so that none saved before the run's end is missed.
            standing = self._watch.look()
            worked = False
            while (step := self._next()) is not None:
                worked = True
                self._take(step)
            if standing.over and not worked:
                return standing
            if standing.over:  # the run may have resumed during the evaluation
                continue
            if standing.state not in ("running", told):
                self._announce(standing.message)
            told = standing.state
            self._pause()

    def _next(self) -> int | None:
        """Return the step of a checkpoint without a row that isn't known to be damaged, or None."""
        known = self._recorded() | self._damaged
        steps = [step for step in self._evaluator.steps() if step not in known]
        newest_first, self._newest_first = self._newest_first, False
        return (steps[-1] if newest_first else steps[0]) if steps else None

    def _recorded(self) -> set[int]:
        self._training.poll()
        self._beside.poll()
        beside = evaluations_that_count(self._beside.rows, self._training.resume_points)
        # The training's rows of the split ``train`` are metrics of batches, not evaluations.
        rows = [*self._training.evaluations, *beside]
        return {row["step"] for row in rows if row.get("split") == self._split and type(row["step"]) is int}

    def _take(self, step: int) -> None:
        restarts, known = self._training.generation, len(self._training.resume_points)
        try:
            self._evaluator.load(step)
        except InputError as error:
            if step in self._evaluator.steps():
                self._damaged.add(step)
                self._announce(f"left out: {error}")
            else:
                # The training prunes faster than this process evaluates; the next oldest may vanish too.
                self._newest_first = True
                self._announce(f"the checkpoint of step {step} was removed before it was read")
            return
        _, row = self._evaluator.evaluate()
        row[RESUMES] = known
        self._recorded()
        points = self._training.resume_points
        if self._training.generation != restarts or is_superseded(step, 0.0, points, known):
            self._announce(
                f"step {step} was left out: the run was started over, or resumed from an earlier step"
            )
        elif append_evaluation(self._run.metrics_path, row, points):
            self.evaluated += 1
            self._evaluator.write_event(row)
            self._announce(
                f"{self._split} at step {step}: {metrics_in_words(row)}  "
                f"({counted(row['examples'], 'example')} in {row['seconds']:.1f} s)"
            )

    def close(self) -> None:
        self._evaluator.close()
