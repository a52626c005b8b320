"""How the weights of a run move."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.config.fields import CODE, OF_THE_OPTIMIZER, FieldOwner, has_type, option
from labkit.errors import InputError, reason_of, short
from labkit.home import expanded

LABKITS = ("sgd", "adamw", "muon")
# Keras's classes, by the names of the flag. Its SGD, AdamW and Muon have labkit's in place of them.
KERAS_OPTIMIZERS = {
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "ftrl": "Ftrl",
    "lamb": "Lamb",
    "lion": "Lion",
    "nadam": "Nadam",
    "rmsprop": "RMSprop",
    "keras_muon": "Muon",
    "schedule_free_adamw": "ScheduleFreeAdamW",
}
ADAPTIVE = ("adamw", *KERAS_OPTIMIZERS)  # whose steps are about as large as the learning rate
# Losses of Keras by what a label is (``Manifest.targets``).
KERAS_LOSSES = {
    "focal": {"class": "CategoricalFocalCrossentropy", "classes": "BinaryFocalCrossentropy"},
    "categorical_hinge": {"class": "CategoricalHinge"},
    "mse": {"numbers": "MeanSquaredError"},
    "mae": {"numbers": "MeanAbsoluteError"},
    "huber": {"numbers": "Huber"},
}
# Keras's names of losses, without underscores and capitals, and labkit's.
_LOSSES_BY_KERAS = {name.lower(): own for own, names in KERAS_LOSSES.items() for name in names.values()}
_LOSSES_BY_KERAS |= {"categoricalcrossentropy": "softmax", "sparsecategoricalcrossentropy": "softmax"}
OF_THE_LOSS = "the losses before and after the fork would be of two kinds"
KERAS_LEARNING_RATE = 0.001  # the default of nearly all of them
# What an optimizer of Keras can do and labkit does in its place, with the way to have it.
LEFT_TO_LABKIT = {
    "weight_decay": "give --weight-decay with --weight-decay-mode decoupled",
    "global_clipnorm": "give --gradient-clip-norm",
    "clipnorm": "labkit clips the norm of the whole gradient, --gradient-clip-norm",
    "clipvalue": "labkit clips the norm of the whole gradient, --gradient-clip-norm",
    "use_ema": "give --ema-decay",
    "loss_scale_factor": "no precision of labkit needs a scaled loss",
    "gradient_accumulation_steps": "give --accumulate-steps",
}


def spelled_optimizer(name: Any) -> Any:
    """Return the name of an optimizer in labkit's spelling: RMSprop is Keras's."""
    is_known = isinstance(name, str) and name.lower() in (*LABKITS, *KERAS_OPTIMIZERS)
    return name.lower() if is_known else name


def is_adaptive(optimizer: Any) -> bool:
    """Return whether an optimizer, by its name, has Keras's learning rate where none is given."""
    return isinstance(optimizer, str) and (optimizer in ADAPTIVE or CODE.fullmatch(optimizer) is not None)


_CLASS_WEIGHTS = 'balanced, a JSON file, or its text, such as {"cat": 2, "dog": 0.5}'


def spelled_class_weights(text: str) -> str:
    """Return ``--class-weights`` in one spelling; a file's name becomes its content. Raises InputError."""
    if text == "balanced":
        return text
    allowed = f"allowed: {_CLASS_WEIGHTS}"
    try:
        content = text if text.lstrip().startswith("{") else expanded(text).read_text(encoding="utf-8")
        weights = json.loads(content)
        good = isinstance(weights, dict) and any(weights.values())
        good = good and all(has_type(weight, float) and 0 <= weight < 2**31 for weight in weights.values())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--class-weights is {short(text)} ({reason_of(error)}); {allowed}") from None
    if not good:
        raise InputError(f"--class-weights is {short(text)}; {allowed}, none below 0 and one above")
    return json.dumps(weights, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class OptimizerConfig(FieldOwner):
    """How the weights move."""

    optimizer: str = option(
        "sgd",
        "Optimizer: sgd with momentum; adamw, which decouples weight decay; or muon, which updates "
        "convolutions that a normalization follows, without weight decay, and leaves the rest to sgd. The "
        "others are Keras's. FILE.py:NAME is a Keras optimizer of your own: a class, or a function that "
        "returns one. All but sgd and muon have a learning rate of 0.001 where none is given.",
        choices=(*LABKITS, *KERAS_OPTIMIZERS),
        is_code=True,
        acts="run",
        fork=OF_THE_OPTIMIZER,
    )
    optimizer_arguments: str | None = option(
        None,
        "Further arguments of an optimizer of Keras or your own, such as beta_1=0.95.",
        of_code="optimizer",
        unset="none",
        fork=OF_THE_OPTIMIZER,
    )
    adamw_beta1: float = option(
        0.9,
        "Fraction of the mean gradient that adamw keeps at each step.",
        minimum=0,
        below=1,
        only_with=("optimizer", "adamw"),
    )
    adamw_beta2: float = option(
        0.999,
        "Fraction of the mean squared gradient that adamw keeps at each step.",
        minimum=0,
        below=1,
        only_with=("optimizer", "adamw"),
    )
    muon_learning_rate: float = option(
        0.24,
        "Learning rate for Muon's kernels; follows the common schedule.",
        minimum=0,
        only_with=("optimizer", "muon"),
    )
    learning_rate: float = option(
        0.1,
        "Initial learning rate; the peak with --learning-rate-schedule one_cycle.",
        minimum=0,
        common=True,
    )
    learning_rate_schedule: str = option(
        "steps",
        "How the learning rate changes. steps multiplies it by 1, 0.1, 0.01 and 0.002 from epochs 0, 82, 123 "
        "and 300; staircase by --staircase-factor after every --staircase-epochs.",
        choices=("steps", "staircase", "cosine", "one_cycle", "constant"),
    )
    staircase_factor: float = option(
        0.1,
        "Factor of the learning rate at each drop of staircase.",
        minimum=0,
        only_with=("learning_rate_schedule", "staircase"),
    )
    staircase_epochs: float = option(
        350.0,
        "Epochs between two drops of staircase.",
        minimum=1e-3,
        only_with=("learning_rate_schedule", "staircase"),
    )
    warmup_steps: int = option(
        0, "Steps over which the learning rate rises linearly from zero to the schedule's.", minimum=0
    )
    one_cycle_peak: float = option(
        0.25,
        "Fraction of the run at which one_cycle reaches its peak.",
        minimum=0,
        below=1,
        only_with=("learning_rate_schedule", "one_cycle"),
    )
    one_cycle_start: float = option(
        0.0,
        "Learning rate of one_cycle before the first step, as a fraction of the peak.",
        minimum=0,
        below=1,
        only_with=("learning_rate_schedule", "one_cycle"),
    )
    one_cycle_end: float = option(
        0.0,
        "Learning rate of one_cycle after the last step, as a fraction of the peak.",
        minimum=0,
        below=1,
        only_with=("learning_rate_schedule", "one_cycle"),
    )
    momentum: float = option(
        0.9,
        "Fraction of the velocity that sgd keeps at each step; muon keeps 0.6 of that of its kernels.",
        minimum=0,
        below=1,
        only_with=("optimizer", "sgd", "muon"),
    )
    nesterov: bool = option(
        False,
        "Uses Nesterov momentum with sgd; muon always does for its kernels.",
        only_with=("optimizer", "sgd", "muon"),
    )
    weight_decay: float = option(2e-4, "Coefficient of the weight decay.", minimum=0)
    weight_decay_mode: str = option(
        "l2",
        "l2 adds decay * w to the gradient; decoupled shrinks w by learning_rate * decay * w, which adamw "
        "always does.",
        choices=("l2", "decoupled"),
    )
    weight_decay_of: str = option(
        "all",
        "Which weights decay: all, kernels without biases and normalization, or the kernels of hidden_dense "
        "layers, which are those before the logits.",
        choices=("all", "kernels", "hidden_dense"),
    )
    ema_decay: float = option(
        0.0,
        "Fraction of the moving average of the weights that each step keeps, less in the first steps. The "
        "average is evaluated and exported instead of the weights. 0 keeps none.",
        minimum=0,
        below=1,
        fork=OF_THE_OPTIMIZER,
        synchronous=True,
    )
    norm_bias_learning_rate_factor: float = option(
        1.0, "Multiplies the learning rate of batch normalization's biases.", minimum=0
    )
    loss: str = option(
        "softmax",
        "Cross-entropy: softmax for one label in each image, sigmoid for several independent ones. focal and "
        "categorical_hinge are Keras's; so are mse, mae and huber, for labels that are numbers. FILE.py:NAME "
        "is a function of your own, NAME(labels, logits), that returns the loss of each image. Weight decay "
        "isn't part of it.",
        choices=("softmax", "sigmoid", *KERAS_LOSSES),
        is_code=True,
        acts="run",
        fork=OF_THE_LOSS,
    )
    loss_arguments: str | None = option(
        None,
        "Further arguments of a loss of Keras or your own, such as gamma=3.",
        of_code="loss",
        unset="none",
        fork=OF_THE_LOSS,
    )
    class_weights: str | None = option(
        None,
        "How much an image of each class counts in the training loss: balanced gives all classes the same "
        'weight in all; or a JSON file, or its text, such as {"cat": 2}, where classes left out have 1.',
        spelled=spelled_class_weights,
        words=_CLASS_WEIGHTS,
        unset="each image counts the same",
        fork=OF_THE_LOSS,
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
        object.__setattr__(self, "optimizer", spelled_optimizer(self.optimizer))
        own = _LOSSES_BY_KERAS.get(self.loss.replace("_", "").lower()) if isinstance(self.loss, str) else None
        if own is not None:
            object.__setattr__(self, "loss", own)
        super().__post_init__()
        if self.optimizer_arguments and self.optimizer in LABKITS:
            raise InputError(
                f"--optimizer-arguments is {self.optimizer_arguments!r} with --optimizer {self.optimizer}, "
                "which has flags of its own; it needs an optimizer of Keras or your own"
            )
        if self.loss_arguments and self.loss in ("softmax", "sigmoid"):
            raise InputError(
                f"--loss-arguments is {self.loss_arguments!r} with --loss {self.loss}, which has none but "
                "--label-smoothing; it needs a loss of Keras or your own"
            )
        if self.label_smoothing and self.loss not in ("softmax", "sigmoid"):
            raise InputError(
                f"--label-smoothing is {self.label_smoothing} with --loss {self.loss}; it needs softmax or "
                "sigmoid (a loss of Keras may take it: --loss-arguments label_smoothing=0.1)"
            )
        if self.optimizer == "muon" and self.learning_rate == 0:
            raise InputError("--learning-rate is 0.0; allowed with --optimizer muon: above 0")

    def with_own_rate(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``changes`` to this; an adaptive optimizer in place of another brings its learning rate."""
        chosen = changes.get("optimizer", self.optimizer)
        if "learning_rate" in changes or is_adaptive(self.optimizer) or not is_adaptive(chosen):
            return changes
        return {**changes, "learning_rate": KERAS_LEARNING_RATE}
