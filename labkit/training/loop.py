"""The train loop: runs steps, records metrics, validates, saves checkpoints, stops and resumes."""

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.callbacks.builtin import builtin_callbacks
from labkit.callbacks.callback import Callback, TrainingView
from labkit.callbacks.calls import Calls
from labkit.config.fields import CODE
from labkit.config.run import Triggers
from labkit.distributed.asynchronous import AsynchronousEngine
from labkit.distributed.membership import Membership
from labkit.distributed.peers import PeerLost
from labkit.distributed.synchronous import StepResult, SynchronousEngine
from labkit.errors import DiskFailure, in_a_line
from labkit.plurals import counted
from labkit.run_directory.directory import WEIGHT_NOT_FINITE
from labkit.run_directory.disk import disk_failure
from labkit.run_directory.metrics import Selection
from labkit.run_directory.stop import asked_to_stop
from labkit.startup.child import UNTIL_SECONDS, UNTIL_STEP
from labkit.startup.interruption import StopRequest
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console, Progress, compile_messages, evaluation_lines, lines_at_start
from labkit.training.evaluate import Evaluation, write_predictions
from labkit.training.network import Network
from labkit.training.plan import TrainingPlan, TrainResult
from labkit.training.telemetry import Pace, SilentTelemetry, Telemetry, WorkerTelemetry

Engine = SynchronousEngine | AsynchronousEngine


class TrainLoop:
    """One session of training: from the start or a checkpoint to the last step or a stop.

    In a synchronous cluster, every worker runs this loop and makes the same decisions after the same steps.
    Only the chief writes the run directory and its checkpoints.

    Args:
        plan: of the run.
        network: its variables are those of ``state``, or initial ones.
        store: the run's checkpoints.
        console: where lines for people go.
        state: the newest checkpoint's state; None for a new run.
        make_engine: takes the number of completed steps, and a function that returns the first step from a
            to b after which something is due. Returns what makes the steps.
        stop: what has asked the training to stop; the engine checks it between steps.
        membership: this process's membership of a cluster; None for a single process.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        network: Network,
        store: CheckpointStore,
        console: Console,
        state: CheckpointState | None,
        make_engine: Callable[[int, Callable[[int, int], int]], Engine],
        stop: StopRequest,
        membership: Membership | None = None,
    ) -> None:
        self.run, self.network, self.store, self.console = plan.run, network, store, console
        self.stop, self.membership, self._make_engine = stop, membership, make_engine
        self.writes = membership is None or membership.task.is_chief
        self.config, self.manifest, self.devices = network.config, network.manifest, network.devices
        self.total_steps = self.config.run.train_steps
        # A search lets its trainings pause at a step, or after seconds, with schedules as long as before.
        self.until_step = min(int(os.environ.get(UNTIL_STEP, self.total_steps)), self.total_steps)
        self._seconds_left = float(os.environ.get(UNTIL_SECONDS) or math.inf)
        self.step = self._began = state.step if state else 0  # completed steps of the run
        self.selection = Selection(state.best_step, state.best_accuracy) if state else Selection()
        self._callback_states = state.callbacks if state else {}
        self.validated_step = self.saved_step = -1  # in this process
        self.saved_at = time.monotonic()
        self.stopped_by = ""
        self.pace = Pace(self.config.data.images_per_step, self._left_after)
        validates = bool(self.manifest.splits.get("validation"))
        self.triggers = Triggers(self.config.run, network.steps_per_epoch, validates)
        self.workers: WorkerTelemetry | None = None
        self.resumed = self.run.metrics_path.exists()
        self.telemetry = (
            Telemetry(self.run, total_steps=self.total_steps, first_step=self.step, resumed=self.resumed)
            if self.writes
            else SilentTelemetry()
        )
        self.calls = self._make_calls(plan.callbacks)

    # ---- from start to end -------------------------------------------------------------------------

    def run_to_end(self) -> TrainResult:
        """Train to the last step or a stop, and record how it ended."""
        try:
            return self._run()
        except KeyboardInterrupt:
            steps = self.store.steps()
            self.calls.on_end("interrupted")
            self.telemetry.state("interrupted", f"at once, unsaved since step {steps[-1] if steps else 0}")
            raise
        except BaseException as error:
            message = in_a_line(error)
            if failure := disk_failure(error):
                raise self._ended_by_disk(failure) from None
            lost = self.membership.explain(error) if self.membership else None
            self.calls.on_end("interrupted" if lost else "failed")
            if lost:
                self.telemetry.state("interrupted", lost)
                raise PeerLost(lost) from None
            self.telemetry.state("failed", message)
            raise
        finally:
            self.telemetry.close()

    def _ended_by_disk(self, failure: str) -> DiskFailure:
        """Record that the run ends at its disk, as far as that can be written. Returns the error to raise."""
        steps = self.store.steps()
        origin = f"step {steps[-1]}, the last checkpoint" if steps else "its start"
        message = f"{failure}; then the same command goes on from {origin}"
        with suppress(OSError):
            self.telemetry.state("failed", message)
        self.calls.on_end("failed")
        return DiskFailure(message)

    def _run(self) -> TrainResult:
        self.engine = self._make_engine(self.step, self.triggers.first)
        if self.membership:
            # From here on this thread may block in a collective, so another thread reports a loss.
            self.membership.watch(lambda message: self.telemetry.state("interrupted", message))
        self.engine.agree(self.step, "the step of the newest checkpoint")
        self.calls.share(self.engine.any_worker)
        self._announce()
        self.calls.on_start(self._callback_states)
        self.calls.agree()
        if self.membership:
            self.workers = WorkerTelemetry(self.network, self.membership, self.step)
        try:
            failure = self._train_steps()
        finally:  # the last checkpoint and the test are no steps
            if self.workers:
                self.workers.close()
        if not failure and self.step < self.total_steps and not self.stopped_by:
            failure = self._save()
            if not failure:
                paused = "paused by a search" if self.step == self.until_step else ""
                asked = "stop requested" if self.stop and asked_to_stop(self.run) else self.stop.name
                reason = asked or paused or "another worker was asked to stop"
                message = f"{reason} at step {self.step}; the same command continues"
                return self._end("interrupted", message)
        return self._end("failed", failure) if failure else self._finish()

    def _make_calls(self, users: Sequence[Callback]) -> Calls:
        """Return the calls of the run's callbacks: labkit's own, then the user's; none without writing."""
        training = TrainingView(self.network, self.run, self._keep_state, self.step)
        callbacks = []
        if self.writes:
            run = self.config.run
            progress = Progress(self.console, self.pace, run.log_every_steps, run.log_every_seconds)
            callbacks = [progress, *builtin_callbacks(self.config.run), *users]
        return Calls(callbacks, training, heartbeat=self.telemetry.heartbeat, say=self.console.line)

    def _left_after(self, step: int) -> tuple[float, int]:
        """Return the work after ``step`` and the number of evaluated examples; each augmented view is one."""
        until, config = self.triggers.validations_until, self.config.run
        views = {"none": 1, "mirror": 3, "mirror_and_shift": 7}[config.test_time_augmentation]
        tested = views * self.manifest.count("test") if config.evaluate_test else 0
        validated = (until(self.total_steps) - until(step)) * self.manifest.count("validation")
        return self.network.work_after(step), validated + tested

    def _busy(self, activity: str) -> None:
        if self.membership:
            self.membership.busy(activity)

    def _announce(self) -> None:
        say = self.console.line
        if not self.writes:
            assert self.membership is not None
            say(f"{self.membership.task.name} trains synchronously from step {self.step}")
            return
        for line in lines_at_start(self.network, self.run, self.step, resumed=self.resumed):
            say(line)

    # ---- steps -------------------------------------------------------------------------------------

    def _train_steps(self) -> str | None:
        """Train until the last step or a stop. Returns what went wrong, or None."""
        while self.step < self.until_step and not self.stopped_by:
            pausing = self.engine.stop_is_agreed() or self._save_is_overdue() or self.calls.pending
            if not (pausing and self.engine.is_idle()):
                failure = self._make_step(start_more=not pausing)
            elif self.calls.pending:  # before a stop by a signal, or a resume would not know of it
                failure = self._pause_for(self._serve_requests)
            elif self.engine.stop_is_agreed():
                return None
            else:
                failure = self._pause_for(self._save)
            if failure:
                return failure
        self.calls.agree()
        return self._callbacks_failure() if self.calls.any_failed else None

    def _make_step(self, *, start_more: bool) -> str | None:
        """Make a step, record it, and do what is due after it. Returns what went wrong, or None."""
        self._announce_compiling()
        self.calls.before_step(self.step + 1)
        if self.membership:
            self.membership.begin()
        row = self._record(self.engine.next_step(start_more=start_more))
        if not math.isfinite(row["loss"]):
            lost = self._diverged(f"loss is {row['loss']} at step {row['step']}".replace("nan", "NaN"))
            return self.calls.failure or lost
        self.calls.agree()
        if self.calls.any_failed:
            return None  # the next turn saves, and says why
        validates, saves = self.triggers.validation(self.step), self.triggers.checkpoint(self.step)
        if validates or saves:
            return self._pause_for(lambda: self._validate_and_save(validates, saves))
        return None

    def _pause_for(self, work: Callable[[], str | None]) -> str | None:
        """Call ``work``, leaving it out of the workers' step times. Returns what ``work`` returns."""
        if self.workers:
            self.workers.finish()
        result = work()
        if self.workers:
            self.workers.begin()
        return result

    def _announce_compiling(self) -> None:
        """Report if the next step has to compile, because trained layers or the image size change."""
        messages = compile_messages(self.network, self.step)
        if not messages:
            return
        self.pace.leave_out_next()
        self.telemetry.compiling("; ".join(messages))
        if self.writes:
            for line in messages.values():
                self.console.line(line)

    def _record(self, result: StepResult) -> dict[str, Any]:
        """Record a completed step. Returns its metrics row."""
        started = time.perf_counter()
        self.step, seconds = result.step, result.seconds
        if self.step > self._began + 1:  # the first step compiles
            self._seconds_left -= seconds
        rate = self.config.data.images_per_step / seconds
        sharing = self.devices.asynchronous_workers or self.devices.num_replicas
        row: dict[str, Any] = {
            "split": "train",
            "step": result.step,
            "epoch": result.step / self.network.steps_per_epoch,
            **result.metrics,
            "learning_rate": result.learning_rate,
            "examples_per_second": rate,
            "replica_examples_per_second": rate / sharing,
            "seconds_per_step": seconds,
            "input_wait_fraction": result.waited / seconds,
            # Stays NaN if the exchange wasn't measured.
            "communication_fraction": result.exchanged / max(seconds, result.worker_seconds),
            "wall_time": time.time(),
        }
        if result.staleness is not None:
            row["staleness"] = float(result.staleness)
            row["worker"] = float(result.worker.partition(":")[2])
            row["worker_seconds"] = result.worker_seconds
        self.pace.add(result.step, seconds, result.waited)
        self.calls.training.observation = result.observation
        row |= self.calls.after_step(row)
        self.telemetry.train_row(row, self.pace)
        if self.workers:
            for line in self.workers.record(result):
                self.console.line(line)
        if not self.devices.asynchronous_workers:  # between two asynchronous steps, it is already counted
            self.pace.add_overhead(time.perf_counter() - started)
        return row

    # ---- what callbacks ask for --------------------------------------------------------------------

    def _serve_requests(self) -> str | None:
        """Do what callbacks asked for, while no step is under way. Returns what went wrong, or None."""
        if self.calls.any_failed:
            return self._callbacks_failure()
        wanted = self.calls.take_requests()
        self.stopped_by = wanted.stop
        validates = wanted.validation or (bool(wanted.stop) and self.triggers.validates)
        validates = validates and self.validated_step != self.step
        return self._validate_and_save(validates, wanted.checkpoint or bool(wanted.stop))

    def _callbacks_failure(self) -> str:
        """Save, so that no step is lost by the failure, and return it."""
        self._save()
        return self.calls.failure or "a callback of the chief failed"

    # ---- validation, checkpoints, the end ----------------------------------------------------------

    def _validate_and_save(self, validates: bool, saves: bool) -> str | None:
        improved = validates and self._validate()
        return self._save() if improved or saves else None

    def _validate(self) -> bool:
        """Evaluate the validation split. Returns whether the run is judged by this checkpoint so far."""
        evaluation, row = self._evaluate("validation", self.step)
        self.pace.add_evaluation(evaluation.seconds, evaluation.examples)
        self.validated_step = self.step
        if self._seconds_left <= 0:
            self.until_step = self.step
        self.calls.agree()
        return self.selection.add(row)

    def _evaluate(self, split: str, step: int) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate ``split`` with the weights of ``step``. Returns the evaluation and its metrics row."""

        def on_batch() -> None:
            self.telemetry.heartbeat(f"evaluating {split}")
            self._busy("evaluates")

        evaluation = self.network.evaluate(split, augmented=split == "test", on_batch=on_batch)
        epoch = step / self.network.steps_per_epoch
        row = evaluation.row() | {"step": step, "epoch": epoch, "wall_time": time.time()}
        if split == "validation":
            row |= self.calls.after_validation(row)
        self.telemetry.evaluation_row(row)
        if self.writes:
            for line in evaluation_lines(evaluation, step, self.config.run.test_time_augmentation):
                self.console.line(line)
        return evaluation, row

    def _save_is_overdue(self) -> bool:
        """Return whether a checkpoint is due by time; always False except in the chief, which saves."""
        seconds = self.config.run.checkpoint_every_seconds
        if not self.writes or seconds is None or self.saved_step == self.step:
            return False
        return time.monotonic() - self.saved_at >= seconds

    def _save(self) -> str | None:
        """Save a checkpoint of this step. Returns what went wrong, or None.

        Weights that aren't finite are never saved; the loss would show them only one step later.
        """
        if self.saved_step == self.step:
            return None
        surplus = self.engine.repeated_updates()
        if surplus:
            self.console.line(
                f"updates made twice, because workers were lost before they reported: {surplus}"
            )
        # Every worker checks: all have the same weights and must stop at the same step.
        if not self.network.state_is_finite():
            return self._diverged(f"{WEIGHT_NOT_FINITE} after step {self.step}")
        if not self.writes:
            return None
        self._busy("saves a checkpoint")
        self.telemetry.heartbeat("saving a checkpoint")
        state = replace(
            self.network.state_after(self.step),
            best_step=self.selection.step,
            best_accuracy=self.selection.best,
            callbacks=self.calls.states(),
        )
        self.run.flush()  # a checkpoint without the rows before it would leave a gap
        self.store.save(self.network.checkpoint(), state)
        self.saved_at = time.monotonic()
        self.saved_step = self.step
        self.calls.after_checkpoint(self.step, self.store.path(self.step))
        return None

    def _keep_state(self, folder: Path, checkpoint: tf.train.Checkpoint, step: int) -> Path:
        """Save ``checkpoint``, a state of this run after ``step`` steps, in ``folder``; return its place."""
        store = CheckpointStore(folder, keep=1)
        store.save(checkpoint, self.network.state_after(step))
        return store.path(step)

    def _diverged(self, what: str) -> str:
        steps = self.store.steps()
        kept = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
        loss = self.config.optimizer.loss
        own = f"look at --loss {loss}, which may give it, or " if CODE.fullmatch(loss) else ""
        rate = f"--learning-rate ({self.config.optimizer.learning_rate:g})"
        return f"{what}; {kept}; {own}lower {rate}, add --warmup-steps or --gradient-clip-norm"

    def _finish(self) -> TrainResult:
        """Evaluate the test set once, with the weights that were chosen on validation."""
        test = None
        if self.config.run.evaluate_test and self.manifest.splits.get("test"):
            # Each worker knows the best step; waiting here ensures that the chief has saved it.
            self.engine.agree(self.selection.step or 0, "the step chosen on validation")
            alone = self.membership is None
            chosen = self.store.step_of("best") if alone else self.selection.step or self.step
            if chosen != self.step:
                self.store.restore(self.network.model_checkpoint(), chosen, partial=True)
                if self.writes:
                    by = f"by {self.config.run.best_by} " if self.config.run.best_by else ""
                    self.console.line(f"testing the weights of step {chosen}, chosen {by}on validation")
            evaluation, test = self._evaluate("test", chosen)
            if self.writes:
                write_predictions(self.run, evaluation, self.manifest, checkpoint_step=chosen)
        message = counted(self.step, "step")
        if self.stopped_by:
            message = f"stopped after {message} of {self.total_steps}: {self.stopped_by}"
        return self._end("finished", message, test)

    def _end(self, state: str, message: str, test: dict[str, Any] | None = None) -> TrainResult:
        self.calls.on_end(state)
        if self.calls.failure and state == "finished":
            state, message = "failed", self.calls.failure
        self.telemetry.state(state, message)
        if self.writes:
            self.console.line(f"{state}: {message}")
        number = self.stop.signal_number
        if state == "interrupted" and number is None:
            number = signal.SIGTERM  # another task was asked to stop, by an unknown signal
        return TrainResult(state, self.run, self.step, message, test, number)
