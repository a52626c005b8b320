"""Schedules compared with values computed by hand."""

import math

import pytest

from labkit.config import OptimizerConfig
from labkit.optim.schedules import learning_rate_at


def rates(steps, total_steps=1000, steps_per_epoch=10.0, **fields):
    config = OptimizerConfig(**fields)
    return [
        learning_rate_at(step, config, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
        for step in steps
    ]


# tf.train.exponential_decay(0.1, step, 50000 / 128 * 350, 0.1, staircase=True)
TUTORIAL = {"learning_rate_schedule": "staircase", "total_steps": 10**6, "steps_per_epoch": 50_000 / 128}
STAIRCASE = {"learning_rate_schedule": "staircase", "staircase_factor": 0.5, "staircase_epochs": 0.4}
COSINE = {"learning_rate_schedule": "cosine", "learning_rate": 1.0}
ONE_CYCLE = {"learning_rate_schedule": "one_cycle"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # The estimator of 2017.
        ({"total_steps": 80000}, {0: 0.1, 819: 0.1, 820: 0.01, 1229: 0.01, 1230: 0.001, 3000: 0.0002}),
        # 45,000 examples, batch size 128: epoch 82 begins within step 28828.
        ({"total_steps": 80000, "steps_per_epoch": 45000 / 128}, {28828: 0.1, 28829: 0.01}),
        (TUTORIAL, {0: 0.1, 136_718: 0.1, 136_719: 0.01, 273_437: 0.01, 273_438: 0.001}),
        (STAIRCASE, {3: 0.1, 4: 0.05, 8: 0.025}),
        # 211 examples, batch size 128: 100 drops in 100 epochs of 1.65 steps, not one in each step.
        (
            {**STAIRCASE, "staircase_factor": 0.9, "staircase_epochs": 1.0, "steps_per_epoch": 211 / 128},
            {1: 0.1, 2: 0.09, 3: 0.09, 4: 0.081, 164: 0.1 * 0.9**99, 165: 0.1 * 0.9**100},
        ),
        (COSINE, {0: 1.0, 250: (1 + math.sqrt(0.5)) / 2, 500: 0.5, 750: (1 - math.sqrt(0.5)) / 2}),
        ({**COSINE, "warmup_steps": 100}, {0: 0.01, 99: 1.0, 100: 1.0, 550: 0.5}),
        (
            {**ONE_CYCLE, "learning_rate": 0.4, "one_cycle_peak": 0.25},
            {0: 0.4 / 250, 124: 0.2, 249: 0.4, 250: 0.4, 625: 0.2, 999: 0.4 / 750},
        ),
        (
            {
                **ONE_CYCLE,
                "learning_rate": 2.0,
                "one_cycle_peak": 0.2,
                "one_cycle_start": 0.2,
                "one_cycle_end": 0.05,
            },
            {0: 2 * (0.2 + 0.8 / 200), 99: 1.2, 199: 2.0, 999: 2 * (0.05 + 0.95 / 800)},
        ),
        (
            {"learning_rate_schedule": "constant", "learning_rate": 0.5, "warmup_steps": 5},
            {0: 0.1, 1: 0.2, 3: 0.4, 4: 0.5, 999: 0.5},
        ),
    ],
)
def test_rates_are_those_computed_by_hand(fields, expected):
    assert rates(expected, **fields) == pytest.approx(list(expected.values()))


@pytest.mark.parametrize("total_steps", [1, 2, 3, 10, 50, 999, 1000])
def test_one_cycle_stays_between_zero_and_its_peak(total_steps):
    found = rates(
        range(total_steps), total_steps=total_steps, learning_rate_schedule="one_cycle", learning_rate=0.4
    )
    assert max(found) <= 0.4
    assert min(found) > 0


@pytest.mark.parametrize("schedule", ["steps", "staircase", "cosine", "one_cycle", "constant"])
def test_rates_are_finite_if_the_whole_run_is_warm_up(schedule):
    found = rates(range(10), total_steps=10, learning_rate_schedule=schedule, warmup_steps=10)
    assert all(math.isfinite(rate) and rate >= 0 for rate in found)
