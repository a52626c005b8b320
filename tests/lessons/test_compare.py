"""What lesson 08 computes: intervals, McNemar's test, selection bias, a plan that is kept."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from course.lessons.compare.inference import selection_bias
from course.lessons.compare.trials import Plan, Trial
from course.lessons.exercises.compare import best_of
from labkit.analysis.inference import mcnemar, mean_interval, t_quantile
from labkit.errors import InputError


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_t_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=2e-4)


def test_an_interval_of_two_values():
    found = mean_interval([0.0, 1.0])
    half = 12.7062 * math.sqrt(0.5) / math.sqrt(2)
    assert (found.low, found.mean, found.high) == pytest.approx((0.5 - half, 0.5, 0.5 + half), abs=1e-3)
    assert found.contains_zero
    assert not mean_interval([1.0, 1.01, 0.99]).contains_zero


def test_mcnemar_counts_every_sequence_of_tosses():
    tosses = np.array(list(itertools.product([True, False], repeat=6)))
    for first in tosses[::7]:
        heads = first.sum()
        extreme = np.abs(tosses.sum(1) - 3) >= abs(heads - 3)
        assert mcnemar(first, ~first).p == pytest.approx(extreme.mean())
    same = np.ones(4, bool)
    assert mcnemar(same, same).p == 1


def test_the_best_of_equals_reports_luck_and_gains_nothing():
    right = np.random.default_rng(0).random((10, 2000)) < 0.7
    reported, fresh = selection_bias(right, 100)
    assert reported[-1] - fresh[-1] > 0.03
    assert fresh == pytest.approx(np.full(10, 0.7), abs=0.02)
    assert reported[0] == pytest.approx(fresh[0], abs=0.01)
    assert best_of(0.7, 100, 1) == pytest.approx(0.7)
    assert reported[-1] == pytest.approx(best_of(0.7, 100, 10), abs=0.02)


def trial(recipe, seed, accuracy):
    right = np.arange(100) < 100 * accuracy
    return Trial(recipe, 0.1, seed, np.linspace(2, 1, 20), accuracy, right)


@pytest.fixture
def plan():
    return Plan("which?", {"a": 0.1, "b": 0.1}, (1, 2), "test", "t interval")


def test_a_plan_takes_all_its_trials_and_no_others(plan, tmp_path):
    trials = [trial("a", 1, 0.5), trial("a", 2, 0.6), trial("b", 1, 0.4), trial("b", 2, 0.7)]
    assert plan.differences(trials[::-1]) == pytest.approx([0.1, -0.1])
    with pytest.raises(InputError, match="lack b seed 2"):
        plan.differences(trials[:-1])
    with pytest.raises(InputError, match="add a seed 3"):
        plan.differences([*trials, trial("a", 3, 0.9)])
    plan.write(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["digest"] == plan.digest
    assert replace(plan, seeds=(1, 2, 3)).digest != plan.digest
