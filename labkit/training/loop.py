"""The train loop: load, step, record, validate, save; stop and go on."""

import math
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from labkit.metrics import selection_figure
from labkit.peers import PeerLost
from labkit.plurals import counted
from labkit.runs import RunDirectory
from labkit.training import announcements
from labkit.training.asynchronous import AsynchronousEngine
from labkit.training.batches import training_batches
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console, step_line
from labkit.training.due import Due
from labkit.training.engines import StepResult, SynchronousEngine
from labkit.training.extras import Extras
from labkit.training.membership import Membership
from labkit.training.predictions import write_predictions
from labkit.training.result import TrainResult
from labkit.training.run_evaluator import RunEvaluator
from labkit.training.schedules import learning_rate_at
from labkit.training.session import Session
from labkit.training.signals import StopRequest
from labkit.training.telemetry import Pace, SilentTelemetry, Telemetry
from labkit.worker_metrics import WorkerMetrics

__all__ = ["TrainLoop"]


@dataclass
class _Progress:
    """Where the loop stands."""

    step: int
    best_step: int | None = None
    best_accuracy: float | None = None
    saved_at: float = field(default_factory=time.monotonic)


class TrainLoop:
    """One session of training: from a checkpoint, or the start, to the last step or a stop.

    In a cluster that trains in step every worker goes through the same loop, and all reach the same
    decisions after the same steps; only the chief writes the run and the checkpoints.
    """

    def __init__(
        self,
        session: Session,
        run: RunDirectory,
        store: CheckpointStore,
        console: Console,
        membership: Membership | None = None,
    ) -> None:
        self.session, self.run, self.store, self.console = session, run, store, console
        self.membership = membership
        self.writes = membership is None or membership.task.is_chief
        self.config, self.manifest, self.plan = session.config, session.manifest, session.plan
        self.steps_per_epoch = session.steps_per_epoch
        self.total_steps = self.config.run.train_steps
        validates = bool(self.manifest.splits.get("validation"))
        self.due = Due(self.config.run, self.steps_per_epoch, validates)

    # ---- from start to end -------------------------------------------------------------------------

    def run_to_end(self, state: CheckpointState | None, stop: StopRequest) -> TrainResult:
        """Train from ``state``, which the session's variables hold already, or from the start.

        Args:
            state: the newest checkpoint's; None for a new run.
            stop: looked at between steps.
        """
        self.stop = stop
        resumed = self.run.metrics_path.exists()
        self.progress = _Progress(0)
        if state is not None:
            self.progress = _Progress(state.step, state.best_step, state.best_accuracy)
        self.telemetry = (
            Telemetry(self.run, total_steps=self.total_steps, first_step=self.progress.step, resumed=resumed)
            if self.writes
            else SilentTelemetry()
        )
        self.evaluator = RunEvaluator(self.session, self.telemetry, self.console if self.writes else None)
        try:
            return self._run(resumed)
        except KeyboardInterrupt:
            steps = self.store.steps()
            self.telemetry.state("interrupted", f"at once, unsaved since step {steps[-1] if steps else 0}")
            raise
        except BaseException as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            lost = self.membership.explain(error) if self.membership else None
            if lost:
                self.telemetry.state("interrupted", lost)
                raise PeerLost(lost) from None
            self.telemetry.state("failed", message)
            raise
        finally:
            self.telemetry.close()

    def _run(self, resumed: bool) -> TrainResult:
        self.extras = Extras(self.config, self.run, self.session) if self.writes else None
        self.engine = self._make_engine()
        if self.membership:
            # From here on this thread may hang in a collective that nothing ends: another one must speak.
            self.membership.watch(lambda message: self.telemetry.state("interrupted", message))
        self.engine.agree(self.progress.step, "the step of the newest checkpoint")
        self._announce(resumed)
        failure = self._train_steps()
        if not failure and self.progress.step < self.total_steps:
            failure = self._save()
            if not failure:
                reason = self.stop.name or "another worker was asked to stop"
                message = f"{reason} at step {self.progress.step}; the same command goes on"
                return self._end("interrupted", message)
        return self._end("failed", failure) if failure else self._finish()

    def _make_engine(self) -> SynchronousEngine | AsynchronousEngine:
        def learning_rate(number: int) -> float:
            return learning_rate_at(
                number,
                self.config.optimizer,
                total_steps=self.total_steps,
                steps_per_epoch=self.steps_per_epoch,
            )

        if self.plan.asynchronous_workers:
            assert self.membership is not None
            return AsynchronousEngine(
                self.session,
                self._batches(),
                learning_rate,
                stuck=self.membership.silent_workers,
                patience=2 * self.config.distribution.peer_timeout_seconds,
                step=self.progress.step,
                stopping=self._is_asked_to_stop,
            )
        wants_batch = self.extras is not None and self.extras.wants_batch
        return SynchronousEngine(
            self.session,
            self._batches(),
            learning_rate,
            name=self.membership.task.name if self.membership else "worker:0",
            on_first_batch=self.extras.first_batch if self.extras and wants_batch else None,
            step=self.progress.step,
            stopping=self._is_asked_to_stop,
        )

    def _is_asked_to_stop(self) -> bool:
        return bool(self.stop) or bool(self.membership and self.membership.a_server_stops())

    def _announce(self, resumed: bool) -> None:
        say = self.console.line
        if not self.writes:
            assert self.membership is not None
            say(f"{self.membership.task.name} trains in step from step {self.progress.step}")
            return
        for line in announcements.at_start(self.session, self.run, self.progress.step, resumed=resumed):
            say(line)

    # ---- steps -------------------------------------------------------------------------------------

    def _train_steps(self) -> str | None:
        """Train until the last step or a stop. Returns what went wrong, or None."""
        pace = Pace(self.config.data.train_batch_size)
        workers = self._worker_metrics()
        hold: int | None = None  # the last step of those under way when a stop or a checkpoint came due
        if self.writes:
            self.console.start_progress(self.progress.step, self.total_steps)
        try:
            while self.progress.step < self.total_steps:
                stopping = self.engine.stop_is_agreed()
                if hold is None and (stopping or self._save_is_overdue()):
                    hold = self.engine.started
                if hold == self.progress.step:
                    if stopping:
                        return None
                    if workers:
                        workers.finish()
                    failure, hold = self._save(), None
                    if failure:
                        return failure
                    if workers:
                        workers.begin()
                    continue
                self._announce_compiling(pace)
                row = self._record(self.engine.next_step(hold or self._limit()), pace, workers)
                if not math.isfinite(row["loss"]):
                    return self._diverged(f"loss is {row['loss']} at step {row['step']}")
                failure = self._after_step(row, pace, workers)
                if failure:
                    return failure
        finally:
            self.console.stop_progress()
            if workers:
                workers.close()
        return None

    def _announce_compiling(self, pace: Pace) -> None:
        """Say what the next step is the first to do: one of other weights, or other images, compiles."""
        news = announcements.of_compiling(self.session, self.progress.step)
        if not news:
            return
        pace.leave_out_next()
        self.telemetry.compiling("; ".join(news))
        if self.writes:
            for line in news.values():
                self.console.line(line)

    def _limit(self) -> int:
        """Return the step up to which steps may be started: all must end before what is due after it."""
        return self.due.first(self.progress.step, self.progress.step + self.engine.window)

    def _worker_metrics(self) -> WorkerMetrics | None:
        if self.membership is None:
            return None
        return WorkerMetrics(
            self.membership.folder,
            first_step=self.progress.step,
            # In step, each worker has its slice of a batch; otherwise a batch of its own.
            examples_per_step=self.config.data.train_batch_size / self.plan.num_workers,
            replicas=self.plan.num_local_replicas,
        )

    def _record(self, result: StepResult, pace: Pace, workers: WorkerMetrics | None) -> dict[str, Any]:
        """Record a completed step. Returns its metrics row."""
        started = time.perf_counter()
        self.progress.step = result.step
        seconds = result.seconds
        rate = self.config.data.train_batch_size / seconds
        row: dict[str, Any] = {
            "split": "train",
            "step": result.step,
            "epoch": result.step / self.steps_per_epoch,
            **result.figures,
            "learning_rate": result.learning_rate,
            "examples_per_second": rate,
            "replica_examples_per_second": rate / (self.plan.asynchronous_workers or self.plan.num_replicas),
            "seconds_per_step": seconds,
            "input_wait_fraction": result.waited / seconds,
            # NaN, where it isn't measured, stays NaN.
            "communication_fraction": result.exchanged / max(seconds, result.worker_seconds),
            "wall_time": time.time(),
        }
        self.telemetry.train_row(row, pace)
        if workers and self.membership:
            rate_of_worker = workers.add(
                result.worker,
                result.step,
                # A worker of a coordinator is given its batch; what it waits for it doesn't know.
                waited=None if self.plan.asynchronous_workers else result.waited,
                worked=result.worker_seconds,
                exchanged=result.exchanged,
            )
            self.membership.tell(result.step, rate_of_worker)
        self.console.progress(
            row["step"], f"loss {row['loss']:.3f} accuracy {row['accuracy']:.3f}", row["loss"]
        )
        # What was spent here is part of the time between two asynchronous steps already.
        spent = 0.0 if self.plan.asynchronous_workers else time.perf_counter() - started
        pace.add(seconds + spent, result.waited)
        return row

    def _after_step(self, row: dict[str, Any], pace: Pace, workers: WorkerMetrics | None) -> str | None:
        """Log, validate and save where it is time to. Returns what went wrong, or None."""
        step, run = row["step"], self.config.run
        if self.writes and (step % run.log_every_steps == 0 or step == self.total_steps):
            lap = pace.lap() or {}
            seconds = pace.seconds_per_step()
            eta = None if seconds is None else seconds * (self.total_steps - step)
            self.console.line(step_line(row | lap, self.total_steps, pace.average_examples_per_second(), eta))
        if self.extras:
            self.extras.after_step(step)
        validates, saves = self.due.validation(step), self.due.checkpoint(step)
        if workers and (validates or saves):
            workers.finish()
        improved = validates and self._validate()
        failure = self._save() if improved or saves else None
        if workers and (validates or saves):
            workers.begin()
        return failure

    def _batches(self):
        return training_batches(self.session, start_step=self.progress.step, stop_step=self.total_steps)

    # ---- validation, checkpoints, the end ----------------------------------------------------------

    def _validate(self) -> bool:
        """Evaluate the validation split. Returns whether it is the best so far."""
        evaluation, _ = self.evaluator.evaluate("validation", self.progress.step)
        best, found = self.progress.best_accuracy, selection_figure(evaluation.figures)
        if best is not None and found <= best:
            return False
        self.progress.best_step, self.progress.best_accuracy = self.progress.step, found
        return True

    def _save_is_overdue(self) -> bool:
        """Return whether it is time for a checkpoint by the clock; the chief's, which alone saves."""
        seconds = self.config.run.checkpoint_every_seconds
        age = time.monotonic() - self.progress.saved_at
        return self.writes and seconds is not None and age >= seconds

    def _save(self) -> str | None:
        """Save a checkpoint of this step. Returns what went wrong, or None.

        Weights that aren't finite are never saved: the loss shows them one step later only.
        """
        progress = self.progress
        if isinstance(self.engine, AsynchronousEngine):
            surplus = self.engine.settle()
            if surplus:
                self.console.line(f"updates made twice, by workers that ended before their report: {surplus}")
        # Every worker looks: all have the same weights, and all must come to the same end.
        if not self.session.weights_are_finite():
            return self._diverged(f"a weight is not finite after step {progress.step}")
        if not self.writes:
            return None
        self.telemetry.beat("saving a checkpoint")
        state = CheckpointState(
            step=progress.step,
            seed=self.config.run.seed,
            data_checksum=self.manifest.checksum,
            num_replicas=self.plan.num_replicas,
            best_step=progress.best_step,
            best_accuracy=progress.best_accuracy,
        )
        self.store.save(self.session.checkpoint(), state)
        progress.saved_at = time.monotonic()
        return None

    def _diverged(self, what: str) -> str:
        steps = self.store.steps()
        kept = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
        return f"{what}; {kept}; lower --learning-rate, add --warmup-steps or --gradient-clip-norm"

    def _finish(self) -> TrainResult:
        """Evaluate the test set, once, with the weights chosen on validation."""
        test = None
        if self.config.run.evaluate_test and self.manifest.splits.get("test"):
            # All workers know the best step by themselves; the chief has saved it when all are here.
            self.engine.agree(self.progress.best_step or 0, "the best step on validation")
            alone = self.membership is None
            chosen = self.store.chosen_step() if alone else self.progress.best_step or self.total_steps
            if chosen != self.total_steps:
                self.store.restore(self.session.model_checkpoint(), chosen, partial=True)
                if self.writes:
                    self.console.line(f"testing the weights of step {chosen}, the best on validation")
            evaluation, test = self.evaluator.evaluate("test", chosen)
            if self.writes:
                write_predictions(self.run, evaluation, self.manifest, checkpoint_step=chosen)
        return self._end("finished", counted(self.total_steps, "step"), test)

    def _end(self, state: str, message: str, test: dict[str, Any] | None = None) -> TrainResult:
        self.telemetry.state(state, message)
        if self.writes:
            self.console.line(f"{state}: {message}")
        number = self.stop.signal_number
        if state == "interrupted" and number is None:
            number = signal.SIGTERM  # another task was asked; by which signal, nobody has told
        return TrainResult(state, self.run, self.progress.step, message, test, number)
