"""Stop a training whose validation result no longer improves."""

from collections.abc import Mapping
from typing import Any

from labkit.callbacks.callback import Callback, TrainingFailed
from labkit.callbacks.training import Training
from labkit.config.arguments import argument
from labkit.errors import InputError, short
from labkit.plurals import counted
from labkit.run_directory.metrics import selection_metric

__all__ = ["EarlyStopping"]


class EarlyStopping(Callback):
    """Stops after ``patience`` validations in a row without a better result than the best so far.

    The result is that by which the best checkpoint is chosen: accuracy, or micro-F1 with several labels. The
    count is restored from the metrics after a resume (Prechelt, "Early stopping - but when?", 1998).

    Raises InputError if ``patience`` isn't a whole number of at least 1.
    """

    def __init__(self, patience: int) -> None:
        allowed = "a whole number of at least 1"
        self.patience = argument("patience", patience, int, allowed=allowed)
        if self.patience < 1:
            raise InputError(f"patience is {short(patience)}; allowed: {allowed}")

    def on_start(self, training: Training) -> None:
        if not training.network.manifest.splits.get("validation"):
            raise TrainingFailed("EarlyStopping needs a validation split, which the data set doesn't have")
        self._best: float | None = None
        self._best_step = self._without = 0
        for row in training.rows("validation"):
            self._take(training, row)

    def after_validation(self, training: Training, row: Mapping[str, Any]) -> None:
        self._take(training, row)

    def _take(self, training: Training, row: Mapping[str, Any]) -> None:
        found = selection_metric(row)
        if self._best is None or found > self._best:
            self._best, self._best_step, self._without = found, row["step"], 0
            return
        self._without += 1
        if self._without >= self.patience:
            training.request_stop(
                f"early stopping: no better validation than {self._best:.4f} at step {self._best_step} in "
                f"{counted(self._without, 'validation')}"
            )
