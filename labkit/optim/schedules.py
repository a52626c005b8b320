"""Learning-rate schedules as pure functions of the step, in Python floats."""

import math

from labkit.config import OptimizerConfig

# From cifar10_estimator (2017): the epochs at which the learning rate changes, and its factors.
STEP_EPOCHS = (82, 123, 300)
STEP_FACTORS = (1.0, 0.1, 0.01, 0.002)


def learning_rate_at(
    step_index: int, config: OptimizerConfig, *, total_steps: int, steps_per_epoch: float
) -> float:
    """Return the learning rate of the update from step ``step_index`` to ``step_index + 1``.

    Args:
        step_index: steps completed before this update, from 0 to ``total_steps - 1``.
        config: schedule, peak learning rate and warm-up.
        total_steps: number of steps in the whole run; cosine and one_cycle end near zero there.
        steps_per_epoch: number of training examples divided by the global batch size; may be fractional.

    Warm-up multiplies the schedule by ``(step_index + 1) / warmup_steps`` until this reaches 1.
    """
    shape = {
        "steps": _steps,
        "staircase": _staircase,
        "cosine": _cosine,
        "one_cycle": _one_cycle,
        "constant": lambda *given: 1.0,
    }
    factor = shape[config.learning_rate_schedule](step_index, config, total_steps, steps_per_epoch)
    if step_index + 1 < config.warmup_steps:
        factor *= (step_index + 1) / config.warmup_steps
    return config.learning_rate * factor


def _steps(step_index: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    passed = sum(step_index >= epoch * steps_per_epoch for epoch in STEP_EPOCHS)
    return STEP_FACTORS[passed]


def _staircase(step_index: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    """Drop by a factor in the first step of every ``staircase_epochs``-th epoch."""
    passed = step_index / (config.staircase_epochs * steps_per_epoch)
    return config.staircase_factor ** int(passed + 1e-9)


def _cosine(step_index: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    """Half a period of a cosine, starting after the warm-up (Loshchilov & Hutter, "SGDR", 2017)."""
    start = min(config.warmup_steps, total_steps - 1)
    progress = max(0, step_index - start) / (total_steps - start)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _one_cycle(step_index: int, config: OptimizerConfig, total_steps: int, steps_per_epoch: float) -> float:
    """Rise linearly to 1, then fall linearly (Smith & Topin, "Super-Convergence", 2018)."""
    peak = config.one_cycle_peak * total_steps
    position = step_index + 1
    if position <= peak:
        return config.one_cycle_start + (1 - config.one_cycle_start) * position / peak
    # If the peak is between two steps, the falling line would start above 1.
    left = min(1.0, (total_steps - step_index) / (total_steps - peak))
    return config.one_cycle_end + (1 - config.one_cycle_end) * left
