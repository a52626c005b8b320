"""The steps after which a training validates and saves checkpoints."""

from dataclasses import dataclass

from labkit.config import RunConfig

__all__ = ["Triggers"]

MOST_VALIDATIONS = 20  # of a run that doesn't say how often to validate


@dataclass(frozen=True)
class Triggers:
    """Decides whether a validation or a checkpoint is due after a step.

    Checkpoints by time (``--checkpoint-every-seconds``) are the train loop's.

    Attributes:
        run: the run's configuration.
        steps_per_epoch: training examples divided by the global batch size, not rounded.
        validates: whether the data set has a validation split.
    """

    run: RunConfig
    steps_per_epoch: float
    validates: bool

    def validation(self, step: int) -> bool:
        """Return whether validation is due after ``step``: as configured or by epochs, and at the end.

        By epochs: once in each, but about 20 times in a run of more epochs.
        """
        return self.validations_until(step) > self.validations_until(step - 1)

    def validations_until(self, step: int) -> int:
        """Return the number of validations that are due in the first ``step`` steps."""
        if not self.validates:
            return 0
        every = self.run.validate_every_steps
        if every is None:
            interval = max(1, self.steps_per_epoch, self.run.train_steps / MOST_VALIDATIONS)
        else:
            interval = every or self.run.train_steps
        last = self.run.train_steps
        return int(min(step, last - 1) / interval) + (step >= last)

    def checkpoint(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step``: as configured, and at the end."""
        every = self.run.checkpoint_every_steps
        return (every is not None and step % every == 0) or step == self.run.train_steps

    def first(self, step: int, last: int) -> int:
        """Return the first step after ``step`` with a validation or checkpoint due, at most ``last``."""
        last = min(last, self.run.train_steps)
        for later in range(step + 1, last):
            if self.validation(later) or self.checkpoint(later):
                return later
        return last
