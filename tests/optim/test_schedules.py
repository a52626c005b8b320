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


def test_steps_of_the_2017_estimator():
    found = rates([0, 819, 820, 1229, 1230, 2999, 3000, 79999], total_steps=80000)
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0002, 0.0002])


def test_steps_with_a_fractional_number_of_steps_per_epoch():
    # 45,000 examples, batch size 128: epoch 82 begins within step 28828; step 28829 is the first within it.
    assert rates([28828, 28829], total_steps=80000, steps_per_epoch=45000 / 128) == pytest.approx([0.1, 0.01])


def test_staircase_of_the_tutorial():
    # tf.train.exponential_decay(0.1, step, int(50000 / 128 * 350), 0.1, staircase=True)
    fields = {"learning_rate_schedule": "staircase", "total_steps": 10**6, "steps_per_epoch": 50_000 / 128}
    steps = [0, 99_999, 136_717, 136_718, 273_435, 273_436]
    assert rates(steps, **fields) == pytest.approx([0.1 * 0.1 ** (step // 136_718) for step in steps])
    assert rates(
        [3, 4, 8], staircase_factor=0.5, staircase_epochs=0.4, **{**fields, "steps_per_epoch": 10}
    ) == [
        0.1,
        0.05,
        0.025,
    ]


def test_cosine():
    found = rates([0, 250, 500, 750], learning_rate_schedule="cosine", learning_rate=1.0)
    assert found == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


def test_cosine_starts_after_the_warm_up():
    found = rates([0, 99, 100, 550], learning_rate_schedule="cosine", learning_rate=1.0, warmup_steps=100)
    assert found == pytest.approx([0.01, 1.0, 1.0, 0.5])


def test_one_cycle_rises_and_falls_linearly():
    found = rates(
        [0, 124, 249, 250, 625, 999],
        learning_rate_schedule="one_cycle",
        learning_rate=0.4,
        one_cycle_peak=0.25,
    )
    assert found == pytest.approx([0.4 / 250, 0.2, 0.4, 0.4, 0.2, 0.4 / 750])


def test_one_cycle_with_other_start_and_end_values():
    found = rates(
        [0, 99, 199, 999],
        learning_rate_schedule="one_cycle",
        learning_rate=2.0,
        one_cycle_peak=0.2,
        one_cycle_start=0.2,
        one_cycle_end=0.05,
    )
    assert found == pytest.approx([2 * (0.2 + 0.8 / 200), 1.2, 2.0, 2 * (0.05 + 0.95 / 800)])


@pytest.mark.parametrize("total_steps", [1, 2, 3, 10, 50, 999, 1000])
def test_one_cycle_stays_between_zero_and_its_peak(total_steps):
    found = rates(
        range(total_steps), total_steps=total_steps, learning_rate_schedule="one_cycle", learning_rate=0.4
    )
    assert max(found) <= 0.4
    assert min(found) > 0


def test_constant_with_warm_up():
    found = rates([0, 1, 3, 4, 999], learning_rate_schedule="constant", learning_rate=0.5, warmup_steps=5)
    assert found == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


@pytest.mark.parametrize("schedule", ["steps", "staircase", "cosine", "one_cycle", "constant"])
def test_rates_are_finite_if_the_whole_run_is_warm_up(schedule):
    found = rates(range(10), total_steps=10, learning_rate_schedule=schedule, warmup_steps=10)
    assert all(math.isfinite(rate) and rate >= 0 for rate in found)
