"""Evaluate a split while a run trains, and record what was found."""

import time
from typing import Any

from labkit.plurals import counted
from labkit.run_directory.metrics import metrics_in_words
from labkit.training.console import Console, format_duration
from labkit.training.evaluate import Evaluation, evaluate_split
from labkit.training.session import Session
from labkit.training.telemetry import SilentTelemetry, Telemetry

__all__ = ["RunEvaluator"]


class RunEvaluator:
    """Evaluates with the weights that the session's variables hold."""

    def __init__(
        self, session: Session, telemetry: Telemetry | SilentTelemetry, console: Console | None
    ) -> None:
        """Args: ``console``: None in a worker that computes its share and leaves the rest to the chief."""
        self.session, self.telemetry, self.console = session, telemetry, console

    def evaluate(self, split: str, step: int) -> tuple[Evaluation, dict[str, Any]]:
        """Evaluate ``split`` with the weights of ``step``. Returns it, and the row that was recorded."""
        session = self.session
        evaluation = evaluate_split(
            session.evaluation_strategy,
            session.predict_step,
            session.manifest,
            split,
            loss=session.loss,
            global_batch_size=session.config.data.eval_batch_size,
            augmented_predict_step=session.augmented_predict_step if split == "test" else None,
            num_workers=session.devices.num_workers,
            worker_number=session.devices.worker_number,
            on_batch=lambda: self.telemetry.beat(f"evaluating {split}"),
        )
        row = evaluation.metrics() | {
            "step": step,
            "epoch": step / session.steps_per_epoch,
            "wall_time": time.time(),
        }
        self.telemetry.evaluation_row(row)
        if self.console:
            self._say(self.console, evaluation, step)
        return evaluation, row

    def _say(self, console: Console, evaluation: Evaluation, step: int) -> None:
        console.line(
            f"{evaluation.split} at step {step}: {metrics_in_words(evaluation.figures)}  "
            f"({counted(evaluation.examples, 'example')} in {format_duration(evaluation.seconds)})"
        )
        if evaluation.augmented is not None:
            views = self.session.config.run.test_time_augmentation
            console.line(
                f"{evaluation.split} with --test-time-augmentation {views}: "
                f"accuracy {evaluation.augmented.accuracy:.4f}"
            )
