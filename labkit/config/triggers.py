"""After which steps a training validates and saves."""

from dataclasses import dataclass

from labkit.config import RunConfig

__all__ = ["Triggers"]


@dataclass(frozen=True)
class Triggers:
    """What the flags of a run ask for after a step; the clock's checkpoints are the loop's.

    Attributes:
        run: the run's flags.
        steps_per_epoch: of the training split, not rounded.
        validates: whether there is a split to validate on.
    """

    run: RunConfig
    steps_per_epoch: float
    validates: bool

    def validation(self, step: int) -> bool:
        """Return whether validation is due after ``step``: as asked or each epoch, and at the end."""
        if not self.validates:
            return False
        if step == self.run.train_steps:
            return True
        every = self.run.validate_every_steps
        if every is None:
            return int(step / self.steps_per_epoch) > int((step - 1) / self.steps_per_epoch)
        return every > 0 and step % every == 0

    def checkpoint(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step``: as asked, and at the end."""
        every = self.run.checkpoint_every_steps
        return (every is not None and step % every == 0) or step == self.run.train_steps

    def first(self, step: int, last: int) -> int:
        """Return the first step after ``step`` with something due; ``last``, or the end, if none has."""
        last = min(last, self.run.train_steps)
        for later in range(step + 1, last):
            if self.validation(later) or self.checkpoint(later):
                return later
        return last
