"""What a run starts from, and what of it is held."""

from dataclasses import dataclass

from labkit.config.fields import FieldOwner, option
from labkit.errors import InputError

__all__ = ["TransferConfig"]


@dataclass(frozen=True)
class TransferConfig(FieldOwner):
    """What a run begins with, and what of it stays as it is."""

    start_from: str | None = option(
        None,
        "Takes initial weights from a run's best checkpoint, from a .keras file, or from imagenet (for "
        "keras_application, imagenet_resnet and imagenet_vgg). Weights whose name or shape doesn't fit stay "
        "random.",
        unset="random weights",
        is_path=True,
    )
    freeze: str | None = option(
        None,
        "Stages or layers to hold fixed, statistics included: names or patterns, separated by commas, such "
        "as stem,stage1 or 'stage*_norm*'.",
        unset="everything is trained",
    )
    unfreeze_every_steps: int = option(
        0, "Steps after which the topmost frozen stage is unfrozen, repeatedly. 0 unfreezes none.", minimum=0
    )
    head_learning_rate_factor: float = option(
        1.0, "Multiplies the learning rate of the layer that gives the logits.", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze is not None and not all(self.freeze_patterns):
            raise InputError(
                f"--freeze is {self.freeze!r}; allowed: names or patterns, comma-separated, none empty"
            )
        if self.unfreeze_every_steps and self.freeze is None:
            raise InputError(
                f"--unfreeze-every-steps is {self.unfreeze_every_steps} without --freeze, so no layer is "
                "frozen; name some, for example --freeze 'stem,stage*'"
            )

    @property
    def freeze_patterns(self) -> list[str]:
        """The patterns of ``freeze``, one by one."""
        return [] if self.freeze is None else [part.strip() for part in self.freeze.split(",")]
