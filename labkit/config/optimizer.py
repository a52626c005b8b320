"""How the weights of a run move."""

from dataclasses import dataclass

from labkit.config.fields import FieldOwner, option
from labkit.errors import InputError

__all__ = ["OptimizerConfig"]


@dataclass(frozen=True)
class OptimizerConfig(FieldOwner):
    """How the weights move."""

    optimizer: str = option(
        "sgd",
        "Optimizer: sgd with momentum, or muon, which updates convolutions that a normalization follows, "
        "without weight decay, and leaves the rest to sgd.",
        choices=("sgd", "muon"),
    )
    muon_learning_rate: float = option(
        0.24, "Learning rate for Muon's kernels; follows the common schedule.", minimum=0
    )
    learning_rate: float = option(
        0.1,
        "Initial learning rate; the peak with --learning-rate-schedule one_cycle.",
        minimum=0,
        common=True,
        aliases=("initial_learning_rate",),
    )
    learning_rate_schedule: str = option(
        "steps",
        "How the learning rate changes. steps multiplies it by 1, 0.1, 0.01 and 0.002 from epochs 0, 82, 123 "
        "and 300.",
        choices=("steps", "cosine", "one_cycle", "constant"),
    )
    warmup_steps: int = option(
        0, "Steps over which the learning rate rises linearly from zero to the schedule's.", minimum=0
    )
    one_cycle_peak: float = option(
        0.25, "Fraction of the run at which one_cycle reaches its peak.", minimum=0, below=1
    )
    one_cycle_start: float = option(
        0.0, "First learning rate of one_cycle as a fraction of the peak.", minimum=0, below=1
    )
    one_cycle_end: float = option(
        0.0, "Final learning rate of one_cycle as a fraction of the peak.", minimum=0, below=1
    )
    momentum: float = option(
        0.9, "Fraction of the velocity that the optimizer keeps at each step.", minimum=0, below=1
    )
    nesterov: bool = option(False, "Uses Nesterov momentum.")
    weight_decay: float = option(2e-4, "Coefficient of the weight decay.", minimum=0)
    weight_decay_mode: str = option(
        "l2",
        "l2 adds decay * w to the gradient; decoupled shrinks w by learning_rate * decay * w.",
        choices=("l2", "decoupled"),
    )
    decay_norm_and_bias: bool = option(
        True, "Applies weight decay to normalization parameters and biases too."
    )
    norm_bias_learning_rate_factor: float = option(
        1.0, "Multiplies the learning rate of batch normalization's biases.", minimum=0
    )
    loss: str = option(
        "softmax",
        "Cross-entropy: softmax for one label in each image, sigmoid for several independent ones.",
        choices=("softmax", "sigmoid"),
    )
    label_smoothing: float = option(
        0.0,
        "Probability that is spread evenly over the classes; with sigmoid over yes and no of each label.",
        minimum=0,
        below=1,
    )
    gradient_clip_norm: float | None = option(
        None,
        "Largest global norm of the gradient; larger ones are scaled down.",
        unset="no clipping",
        minimum=1e-12,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "muon" and self.learning_rate == 0:
            raise InputError("--learning-rate is 0.0; allowed with --optimizer muon: above 0")
        if self.optimizer != "muon":
            where = f"with --optimizer {self.optimizer}"
            self.require_defaults(("muon_learning_rate",), where, "only muon uses it")
        if self.learning_rate_schedule != "one_cycle":
            # Not the peak: one that a preset gave doesn't matter to whoever takes another schedule.
            names = ("one_cycle_start", "one_cycle_end")
            where = f"with --learning-rate-schedule {self.learning_rate_schedule}"
            self.require_defaults(names, where, "only one_cycle uses it")
