"""The steps after which a training validates and saves checkpoints."""

from dataclasses import dataclass

from labkit.config import RunConfig

__all__ = ["Triggers"]


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
        """Return whether validation is due after ``step``: as configured, or each epoch, and at the end."""
        if not self.validates:
            return False
        if step == self.run.train_steps:
            return True
        every = self.run.validate_every_steps
        if every is None:
            return int(step / self.steps_per_epoch) > int((step - 1) / self.steps_per_epoch)
        return every > 0 and step % every == 0

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
