"""Length, checkpoints and logging of a run."""

import dataclasses
from dataclasses import dataclass
from typing import Self

from labkit.config.fields import CODE, IN_A_FILE, OF_THE_ORDER, FieldOwner, code_and_names, option
from labkit.errors import InputError

_DEFAULT_STEPS, _MOST_STEPS = 80_000, 10**9  # 80,000: cifar10_estimator of 2017
MOST_VALIDATIONS = 20  # of a run that doesn't say how often to validate


METRICS = ("balanced_accuracy", "f1_macro", "auc")


def spelled_metrics(text: str) -> str:
    """Return ``--metrics`` in one spelling, code first. Raises InputError for an unknown name."""
    own, names = code_and_names(text, METRICS)
    if own is None:
        return ",".join(names)
    parts = [part.strip() for part in own.split(",")]
    files = {part: found["path"] for part in (own, *parts) if (found := CODE.fullmatch(part))}
    unknown = [part for part in parts if not files.get(part)]
    # With a comma, what begins without a folder is a name, not the beginning of a file's.
    if not files.get(own) or (len(parts) > 1 and (not unknown or "/" not in parts[0])):
        raise InputError(
            f"--metrics has {(unknown or parts[1:])[0]!r}; allowed: {', '.join(METRICS)} and one "
            "FILE.py:NAME, separated by commas; for several of your own, NAME is a list of them in the file"
        )
    return ",".join([own, *names])


@dataclass(frozen=True)
class RunConfig(FieldOwner):
    """How long, where to, what is written when."""

    job_dir: str | None = option(
        None,
        "Directory of the run. A run that is there is continued.",
        unset="<home>/runs/<name made from the configuration>",
        role="other",
        common=True,
        is_path=True,
        fork="--job-dir names the fork's directory",
    )
    train_steps: int = option(
        _DEFAULT_STEPS,
        "Training steps of the whole run, including those done before it was interrupted.",
        minimum=1,
        maximum=_MOST_STEPS,
        common=True,
    )
    epochs: float | None = option(
        None,
        "Length of the run in passes over the training images, instead of --train-steps.",
        unset="as many as --train-steps make",
        minimum=1e-6,
        common=True,
        fork="its length is counted in steps; write train_steps=STEPS",
    )
    steps_range: str | None = option(
        None,
        "FEWEST:MOST. Limits of the steps that --epochs makes of a small or large data set.",
        unset="no limits",
        fork="its length is counted in steps; write train_steps=STEPS",
    )
    seed: int = option(
        0,
        "Seed of the initial weights, the order of the examples and the augmentation.",
        minimum=0,
        below=2**31,
        fork=OF_THE_ORDER,
    )
    deterministic: bool = option(
        False,
        "Makes runs with the same seed bit-identical on the same machine; steps become slower.",
        synchronous=True,
    )
    log_every_steps: int = option(
        100, "Steps between two lines on the console.", minimum=1, role="other", group="logging"
    )
    log_every_seconds: float | None = option(
        10.0,
        "Seconds after which a line is printed though --log-every-steps aren't over. none: by steps alone.",
        minimum=0,
        role="other",
        group="logging",
    )
    validate_every_steps: int | None = option(
        None,
        "Steps between two validations. 0 validates at the end only.",
        unset="once an epoch, about 20 times in a longer run",
        minimum=0,
    )
    checkpoint_every_steps: int | None = option(
        None,
        "Steps between two checkpoints, beside those of --checkpoint-every-seconds.",
        minimum=1,
        role="other",
    )
    checkpoint_every_seconds: float | None = option(
        300.0,
        "Seconds between two checkpoints. none leaves only those of --checkpoint-every-steps and the last.",
        minimum=0,
        role="other",
    )
    keep_checkpoints: int = option(
        2, "Newest checkpoints to keep. The one chosen on validation is kept too.", minimum=1, role="other"
    )
    early_stopping_patience: int | None = option(
        None,
        "Validations in a row without a better result after which the training stops.",
        unset="never stops early",
        minimum=1,
    )
    metrics: str | None = option(
        None,
        "Further metrics of an evaluation, separated by commas: balanced_accuracy, f1_macro, auc, and one "
        "FILE.py:NAME, a function (labels, logits), a metric of Keras, or a list of such things.",
        is_code=True,
        beside=METRICS,
        acts="run",
        spelled=spelled_metrics,
        unset="those of the loss",
    )
    best_by: str | None = option(
        None,
        "Metric of the validation by which the best checkpoint is chosen, and a training stops early. Of "
        "loss, and of what ends in loss or error, the lowest is best.",
        unset="accuracy; micro-F1 of several labels; mean_absolute_error of numbers",
        fork="the checkpoints before the fork were chosen by the parent's metric",
    )
    callbacks: str | None = option(
        None,
        "Python file that defines callbacks, a list of labkit.Callback objects to call during the training. "
        "FILE.py:NAME is a class in it, or a function that returns one or several such objects.",
        role="other",
        is_path=True,
        is_code=True,
        acts="run",
    )
    callback_arguments: str | None = option(
        None,
        "Arguments of the class or function of --callbacks FILE.py:NAME, such as every=10.",
        of_code="callbacks",
        role="other",
        unset="none",
    )
    evaluate_test: bool = option(
        True, "Evaluates the test set at the end of the training.", role="measurement"
    )
    test_time_augmentation: str = option(
        "none",
        "Averages the predictions for several views of each test image and reports this beside the plain "
        "result. mirror takes two views, mirror_and_shift six.",
        choices=("none", "mirror", "mirror_and_shift"),
        role="measurement",
    )
    inspect_every_steps: int = option(
        0,
        "Steps between two inspected steps, which record activations, gradients and updates of each layer, "
        "also as histograms for TensorBoard. 0 inspects none.",
        minimum=0,
        role="observation",
        group="logging",
    )
    check_numerics: bool = option(
        False,
        "Names step, layer and operation of the first NaN or Infinity, and keeps the state before that step.",
        role="observation",
        group="logging",
        synchronous=True,
    )
    write_graph: bool = option(
        False,
        "Writes the graph of the training step for TensorBoard.",
        role="observation",
        group="logging",
        synchronous=True,
    )
    write_images: bool = option(
        False,
        "Writes a batch of augmented images for TensorBoard.",
        role="observation",
        group="logging",
        synchronous=True,
    )
    profile_steps: str | None = option(
        None,
        "FIRST:LAST. Traces these steps for TensorBoard's profiler.",
        role="observation",
        group="logging",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.early_stopping_patience is not None and self.validate_every_steps == 0:
            raise InputError(
                f"--early-stopping-patience is {self.early_stopping_patience} with --validate-every-steps 0, "
                "which validates at the end only; give --validate-every-steps a number of steps, or leave it "
                "out to validate once an epoch"
            )
        if self.epochs is not None and self.train_steps != _DEFAULT_STEPS:
            raise InputError(
                f"--epochs is {self.epochs:g} beside --train-steps {self.train_steps}; give one of the two"
            )
        if self.steps_range is not None and self.epochs is None:
            raise InputError(f"--steps-range is {self.steps_range!r}; allowed with --epochs only")
        if self.callback_arguments and CODE.fullmatch(self.callbacks or "") is None:
            raise InputError(
                f"--callback-arguments is {self.callback_arguments!r} with --callbacks "
                f"{self.callbacks or 'none'}; it needs a class or a function, --callbacks {IN_A_FILE}"
            )
        _ = self.profiled_steps, self.fewest_and_most_steps

    def with_steps_for(self, examples: int, batch_size: int) -> Self:
        """Return this with the steps that ``epochs`` makes of ``examples`` in batches of ``batch_size``.

        Without ``epochs`` nothing changes. The result has ``train_steps`` alone, so that what a run records
        is a number of steps.
        """
        if self.epochs is None:
            return self
        fewest, most = self.fewest_and_most_steps
        steps = min(max(round(self.epochs * examples / batch_size), fewest), most)
        return dataclasses.replace(self, train_steps=steps, epochs=None, steps_range=None)

    @property
    def fewest_and_most_steps(self) -> tuple[int, int]:
        """The parts of ``steps_range``. Raises InputError if they can't be read."""
        if self.steps_range is None:
            return 1, _MOST_STEPS
        fewest, _, most = self.steps_range.partition(":")
        if fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) <= int(most) <= _MOST_STEPS:
            return int(fewest), int(most)
        raise InputError(
            f"--steps-range is {self.steps_range!r}; allowed: FEWEST:MOST, two numbers of steps such as "
            "300:10000"
        )

    @property
    def profiled_steps(self) -> tuple[int, int] | None:
        """First and last step of ``profile_steps``. Raises InputError if they can't be read."""
        if self.profile_steps is None:
            return None
        first, _, last = self.profile_steps.partition(":")
        if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= self.train_steps:
            return int(first), int(last)
        raise InputError(
            f"--profile-steps is {self.profile_steps!r}; allowed: FIRST:LAST, two steps from 1 to "
            f"--train-steps, {self.train_steps}, such as 10:19"
        )


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
