"""``Callback``: the methods that the train loop calls. Needs neither TensorFlow nor NumPy."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.callbacks.training import Training

__all__ = ["METHODS", "Callback", "TrainingFailed"]

Metrics = Mapping[str, float] | None


class TrainingFailed(Exception):
    """Raised by a callback to end the run as failed; the message says why, in one line."""


class Callback:
    """Base class of callbacks. Override the methods that you need; the others are not called.

    Each method gets ``training``, a view of the run (``labkit.callbacks.training.Training``), through which
    it may also ask for a stop, a validation or a checkpoint. In a cluster, the methods are called on the
    chief alone. In an asynchronous one, steps end in the order in which the workers report them.

    Training waits while a method runs. An exception ends the run as failed; its checkpoints are kept.

    A callback that counts something over many steps can restore its count in ``on_start``, after a resume,
    from ``training.rows("train")``.
    """

    def on_start(self, training: "Training") -> None:
        """Called once, before the first step of this process."""

    def before_step(self, training: "Training", step: int) -> None:
        """Called before step ``step``, from 1. (In an asynchronous cluster its work may already run.)"""

    def after_step(self, training: "Training", row: Mapping[str, Any]) -> Metrics:
        """Called after each step, with its metrics row.

        Returns metrics to add to the row: numbers by name; None for none. A name consists of letters, digits,
        ``_``, ``.``, ``-`` and ``/``, begins with a letter, and differs from the names in the row.
        """
        return None

    def after_validation(self, training: "Training", row: Mapping[str, Any]) -> Metrics:
        """Called after each validation, with its metrics row. Returns metrics to add, as ``after_step``."""
        return None

    def after_checkpoint(self, training: "Training", step: int, path: Path) -> None:
        """Called after the checkpoint of ``step`` was saved in the folder ``path``."""

    def on_end(self, training: "Training", state: str) -> None:
        """Called once at the end of this process's training, before the state is written.

        ``state``: ``finished``, ``interrupted`` or ``failed``.
        """


METHODS = tuple(name for name in vars(Callback) if not name.startswith("_"))
