"""Learning-rate schedules: pure functions of the step, in Python floats, easy to check by hand."""

import math

from labkit.config import OptimizerConfig

__all__ = ["learning_rate_at"]

# The 2017 cifar10_estimator: epochs at which the learning rate changes, and its factors.
STEP_EPOCHS = (82, 123, 300)
STEP_FACTORS = (1.0, 0.1, 0.01, 0.002)


def learning_rate_at(
    step: int, config: OptimizerConfig, *, total_steps: int, steps_per_epoch: float
) -> float:
    """Return the learning rate of the update from ``step`` to ``step + 1``.

    Args:
        step: steps completed before this update, from 0 to ``total_steps - 1``.
        config: kind of schedule, its height, warm-up.
        total_steps: steps of the whole run; cosine and one_cycle end there near zero.
        steps_per_epoch: training examples over the global batch size; need not be whole.

    Warm-up multiplies the schedule by ``(step + 1) / warmup_steps`` until that is 1.
    """
    shape = {"steps": _steps, "cosine": _cosine, "one_cycle": _one_cycle, "constant": _constant}
    factor = shape[config.learning_rate_schedule](step, config, total_steps, steps_per_epoch)
    if step + 1 < config.warmup_steps:
        factor *= (step + 1) / config.warmup_steps
    return config.learning_rate * factor


def _steps(step: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    passed = sum(step >= epoch * steps_per_epoch for epoch in STEP_EPOCHS)
    return STEP_FACTORS[passed]


def _cosine(step: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    """Loshchilov & Hutter, "SGDR" (2017), one period; it starts when the warm-up is over."""
    start = min(config.warmup_steps, total_steps - 1)
    share = max(0, step - start) / (total_steps - start)
    return 0.5 * (1 + math.cos(math.pi * share))


def _one_cycle(step: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    """Up and down in straight lines (Smith & Topin, "Super-Convergence", 2018); the peak is 1."""
    peak = config.one_cycle_peak * total_steps
    position = step + 1
    if position <= peak:
        return config.one_cycle_start + (1 - config.one_cycle_start) * position / peak
    # Where the peak falls between two steps, the line down starts above it.
    left = min(1.0, (total_steps - step) / (total_steps - peak))
    return config.one_cycle_end + (1 - config.one_cycle_end) * left


def _constant(step: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    return 1.0
