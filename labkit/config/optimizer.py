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
        "sgd: with momentum; muon: for convolutions before a normalization, without decay; sgd for the rest",
        choices=("sgd", "muon"),
    )
    muon_learning_rate: float = option(0.24, "of muon's kernels; the schedule is the others' one", minimum=0)
    muon_momentum: float = option(0.6, "of muon's kernels", minimum=0, below=1)
    learning_rate: float = option(0.1, "initial value of the schedule, peak for one_cycle", minimum=0)
    learning_rate_schedule: str = option(
        "steps",
        "steps: x1, 0.1, 0.01, 0.002 from epochs 0, 82, 123, 300; cosine; one_cycle; constant",
        choices=("steps", "cosine", "one_cycle", "constant"),
    )
    warmup_steps: int = option(0, "steps over which the schedule is scaled up linearly from zero", minimum=0)
    one_cycle_peak: float = option(
        0.25,
        "share of the run after which one_cycle is at its peak; of no effect on the other schedules",
        minimum=0,
        below=1,
    )
    one_cycle_start: float = option(0.0, "of the peak: where one_cycle begins to rise", minimum=0, below=1)
    one_cycle_end: float = option(0.0, "of the peak: where one_cycle ends", minimum=0, below=1)
    momentum: float = option(0.9, "share of the velocity kept at each step", minimum=0, below=1)
    nesterov: bool = option(False, "Nesterov momentum")
    weight_decay: float = option(2e-4, "coefficient of the weight decay", minimum=0)
    weight_decay_mode: str = option(
        "l2",
        "l2: decay * w is added to the gradient; decoupled: w shrinks by learning_rate * decay * w",
        choices=("l2", "decoupled"),
    )
    decay_norm_and_bias: bool = option(True, "decay normalization parameters and biases too")
    norm_bias_learning_rate_factor: float = option(
        1.0, "of the learning rate, for the offsets of batch normalization", minimum=0
    )
    loss: str = option(
        "softmax",
        "cross-entropy; softmax: one label per image; sigmoid: several, each for itself",
        choices=("softmax", "sigmoid"),
    )
    label_smoothing: float = option(
        0.0,
        "probability mass spread evenly over the classes (sigmoid: over yes and no of each label)",
        minimum=0,
        below=1,
    )
    gradient_clip_norm: float | None = option(
        None, "largest global norm of the gradient (None: no clipping)", minimum=1e-12
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "muon" and self.learning_rate == 0:
            raise InputError("--learning-rate is 0.0; allowed with --optimizer muon: above 0")
        if self.optimizer != "muon":
            names = ("muon_learning_rate", "muon_momentum")
            self.require_defaults(names, f"with --optimizer {self.optimizer}", "muon has others")
        if self.learning_rate_schedule != "one_cycle":
            # Not the peak: one that a preset gave doesn't matter to whoever takes another schedule.
            names = ("one_cycle_start", "one_cycle_end")
            where = f"with --learning-rate-schedule {self.learning_rate_schedule}"
            self.require_defaults(names, where, "one_cycle has others")
