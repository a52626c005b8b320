"""The train loop: load, step, record, validate, save; stop and go on."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from labkit.data.inputs import InputShare, choose_input_path
from labkit.data.loading import load_split
from labkit.data.pipeline import train_dataset
from labkit.runs import RunDirectory
from labkit.training.checkpoints import CheckpointState, CheckpointStore
from labkit.training.console import Console, format_duration, step_line
from labkit.training.evaluate import Evaluation, evaluate_split
from labkit.training.extras import Extras
from labkit.training.predictions import write_predictions
from labkit.training.result import TrainResult
from labkit.training.schedules import learning_rate_at
from labkit.training.session import Session
from labkit.training.signals import StopRequest
from labkit.training.telemetry import Pace, Telemetry

__all__ = ["TrainLoop"]


@dataclass
class _Progress:
    """Where the loop stands."""

    step: int
    best_step: int | None = None
    best_accuracy: float | None = None
    saved_at: float = field(default_factory=time.monotonic)


class TrainLoop:
    """One session of training: from a checkpoint, or the start, to the last step or a stop."""

    def __init__(self, session: Session, run: RunDirectory, store: CheckpointStore, console: Console) -> None:
        self.session, self.run, self.store, self.console = session, run, store, console
        self.config, self.manifest, self.plan = session.config, session.manifest, session.plan
        self.steps_per_epoch = self.manifest.count("train") / self.config.data.train_batch_size
        self.total_steps = self.config.run.train_steps

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
        self.telemetry = Telemetry(
            self.run, total_steps=self.total_steps, first_step=self.progress.step, resumed=resumed
        )
        try:
            return self._run(resumed)
        except KeyboardInterrupt:
            steps = self.store.steps()
            self.telemetry.state("interrupted", f"at once, unsaved since step {steps[-1] if steps else 0}")
            raise
        except BaseException as error:
            self.telemetry.state("failed", f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        finally:
            self.telemetry.close()

    def _run(self, resumed: bool) -> TrainResult:
        self._announce(resumed)
        self.extras = Extras(self.config, self.run, self.session)
        failure = self._train_steps()
        if not failure and self.stop and self.progress.step < self.total_steps:
            failure = self._save()
            if not failure:
                message = f"{self.stop.name} at step {self.progress.step}; the same command goes on"
                return self._end("interrupted", message)
        return self._end("failed", failure) if failure else self._finish()

    def _announce(self, resumed: bool) -> None:
        say = self.console.line
        if self.plan.banner:
            say(self.plan.banner)
        counts = ", ".join(f"{self.manifest.count(name):,} {name}" for name in self.manifest.splits)
        say(f"run {self.run.path}")
        say(
            f"{self.session.model.name}, {self.session.num_parameters():,} parameters, "
            f"on {self.plan.describe()}; {self.manifest.dataset}: {counts}"
        )
        decay = self.config.model.batch_norm_decay
        initial_share = decay**self.total_steps
        if initial_share > 0.05:
            say(
                f"note: with --batch-norm-decay {decay:g}, {initial_share:.0%} of the moving averages will "
                f"be initial values still after {self.total_steps} steps, and validation and test accuracy "
                "far below that of training; short runs want about 0.9"
            )
        if resumed:
            say(f"going on from step {self.progress.step} of {self.total_steps}")

    # ---- steps -------------------------------------------------------------------------------------

    def _train_steps(self) -> str | None:
        """Train until the last step or a stop. Returns what went wrong, or None."""
        batches = self._batches()
        pace = Pace(self.config.data.train_batch_size)
        self.console.start_progress(self.progress.step, self.total_steps)
        try:
            while self.progress.step < self.total_steps and not self.stop:
                row = self._train_one_step(batches, pace)
                if not math.isfinite(row["loss"]):
                    return self._diverged(f"loss is {row['loss']} at step {row['step']}")
                failure = self._after_step(row, pace)
                if failure:
                    return failure
        finally:
            self.console.stop_progress()
        return None

    def _train_one_step(self, batches, pace: Pace) -> dict[str, Any]:
        """Make one update and record it. Returns its metrics row."""
        started = time.perf_counter()
        images, labels = next(batches)
        waited = time.perf_counter() - started
        if self.extras.wants_batch:
            self.extras.first_batch(
                self.session.strategy.experimental_local_results(images)[0], self.progress.step
            )
        learning_rate = learning_rate_at(
            self.progress.step,
            self.config.optimizer,
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
        )
        result = self.session.train_step(images, labels, tf.constant(learning_rate, tf.float32))
        loss, accuracy = result.numpy().tolist()
        seconds = time.perf_counter() - started
        self.progress.step += 1
        row = {
            "split": "train",
            "step": self.progress.step,
            "epoch": self.progress.step / self.steps_per_epoch,
            "loss": loss,
            "accuracy": accuracy,
            "learning_rate": learning_rate,
            "examples_per_second": self.config.data.train_batch_size / seconds,
            "seconds_per_step": seconds,
            "input_wait_fraction": waited / seconds,
            "wall_time": time.time(),
        }
        self.telemetry.train_row(row, pace)
        self.console.progress(row["step"], f"loss {loss:.3f} accuracy {accuracy:.3f}", loss)
        pace.add(time.perf_counter() - started, waited)
        return row

    def _after_step(self, row: dict[str, Any], pace: Pace) -> str | None:
        """Log, validate and save where it is time to. Returns what went wrong, or None."""
        step, run = row["step"], self.config.run
        if step % run.log_every_steps == 0 or step == self.total_steps:
            lap = pace.lap() or {}
            seconds = pace.seconds_per_step()
            eta = None if seconds is None else seconds * (self.total_steps - step)
            self.console.line(step_line(row | lap, self.total_steps, pace.average_examples_per_second(), eta))
        self.extras.after_step(step)
        improved = False
        if self._validation_is_due(step):
            improved = self._validate()
        if improved or self._save_is_due(step):
            return self._save()
        return None

    def _batches(self):
        config, session = self.config, self.session
        replicas = self.plan.num_replicas
        path = choose_input_path(self.manifest, config.data.input_path)
        arrays = load_split(self.manifest, "train") if path == "memory" else None
        return iter(
            session.strategy.distribute_datasets_from_function(
                lambda _: train_dataset(
                    self.manifest,
                    global_batch_size=config.data.train_batch_size,
                    seed=config.run.seed,
                    start_step=self.progress.step,
                    stop_step=self.total_steps,
                    use_distortion=config.data.use_distortion_for_training,
                    input_path=path,
                    share=InputShare(num_replicas=replicas, num_local_replicas=replicas),
                    shuffle_buffer_size=config.data.shuffle_buffer_size,
                    arrays=arrays,
                )
            )
        )

    # ---- validation, checkpoints, the end ----------------------------------------------------------

    def _validation_is_due(self, step: int) -> bool:
        if not self.manifest.splits.get("validation"):
            return False
        if step == self.total_steps:
            return True
        every = self.config.run.validate_every_steps
        if every is None:
            return int(step / self.steps_per_epoch) > int((step - 1) / self.steps_per_epoch)
        return every > 0 and step % every == 0

    def _validate(self) -> bool:
        """Evaluate the validation split. Returns whether it is the best so far."""
        evaluation = self._evaluate("validation")
        self._record(evaluation, self.progress.step)
        best = self.progress.best_accuracy
        if best is not None and evaluation.accuracy <= best:
            return False
        self.progress.best_step, self.progress.best_accuracy = self.progress.step, evaluation.accuracy
        return True

    def _evaluate(self, split: str) -> Evaluation:
        return evaluate_split(
            self.session.strategy,
            self.session.predict_step,
            self.manifest,
            split,
            global_batch_size=self.config.data.eval_batch_size,
            on_batch=lambda: self.telemetry.beat(f"evaluating {split}"),
        )

    def _record(self, evaluation: Evaluation, step: int) -> dict[str, Any]:
        row = evaluation.metrics() | {
            "step": step,
            "epoch": step / self.steps_per_epoch,
            "wall_time": time.time(),
        }
        self.telemetry.evaluation_row(row)
        self.console.line(
            f"{evaluation.split} at step {step}: loss {evaluation.loss:.4f}  "
            f"accuracy {evaluation.accuracy:.4f}  top5_accuracy {evaluation.top5_accuracy:.4f}  "
            f"({evaluation.examples:,} examples in {format_duration(evaluation.seconds)})"
        )
        return row

    def _save_is_due(self, step: int) -> bool:
        run = self.config.run
        by_steps = run.checkpoint_every_steps is not None and step % run.checkpoint_every_steps == 0
        age = time.monotonic() - self.progress.saved_at
        by_seconds = run.checkpoint_every_seconds is not None and age >= run.checkpoint_every_seconds
        return by_steps or by_seconds or step == self.total_steps

    def _save(self) -> str | None:
        """Save a checkpoint of this step. Returns what went wrong, or None.

        Weights that aren't finite are never saved: the loss shows them one step later only.
        """
        progress = self.progress
        if not self.session.weights_are_finite():
            return self._diverged(f"a weight is not finite after step {progress.step}")
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
            chosen = self.store.chosen_step()
            if chosen != self.total_steps:
                self.store.restore(self.session.model_checkpoint(), chosen, partial=True)
                self.console.line(f"testing the weights of step {chosen}, the best on validation")
            evaluation = self._evaluate("test")
            test = self._record(evaluation, chosen)
            write_predictions(self.run, evaluation, self.manifest, checkpoint_step=chosen)
        return self._end("finished", f"{self.total_steps} steps", test)

    def _end(self, state: str, message: str, test: dict[str, Any] | None = None) -> TrainResult:
        self.telemetry.state(state, message)
        self.console.line(f"{state}: {message}")
        return TrainResult(state, self.run, self.progress.step, message, test, self.stop.signal_number)
