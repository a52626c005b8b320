"""Curves of a run hold every row that counts, in order of step."""

import math

import numpy as np
import pandas
import pytest

from labkit.analysis.curves import Curves, moving_average, read_curves
from labkit.run_directory import RunDirectory
from labkit.run_directory.metrics import MetricsWriter


def test_a_resumed_run_gives_one_curve(tmp_path):
    run = RunDirectory(tmp_path)
    assert len(read_curves(run).curve("train", "loss")) == 0
    writer = MetricsWriter(run.metrics_path)
    writer.append([{"split": "train", "step": step, "loss": float(step)} for step in (1, 2, 3, 4)])
    writer.mark_resume_point(2)
    writer.append([{"split": "train", "step": step, "loss": 10.0 * step} for step in (3, 4)])
    writer.close()
    curves = read_curves(run)
    curve = curves.curve("train", "loss")
    assert curve.step.tolist() == [1, 2, 3, 4]
    assert curve.value.tolist() == [1, 2, 30, 40]
    assert [resume_point.step for resume_point in curves.resume_points] == [2]


def test_steps_are_sorted_and_splits_are_separate():
    curves = Curves(
        [
            {"split": "validation", "step": 9, "loss": 3.0},
            {"split": "train", "step": 2, "loss": 2.0},
            {"split": "train", "step": 1, "loss": math.nan},
            {"split": "train", "step": 3, "loss": math.inf},
            {"split": "train", "step": 4, "loss": None},
            {"split": "train", "step": 5},
        ]
    )
    curve = curves.curve("train", "loss")
    assert curve.step.tolist() == [1, 2, 3]
    assert curve.not_finite.tolist() == [1, 3]
    assert curves.curve("validation", "loss").value.tolist() == [3.0]


@pytest.mark.parametrize("weight", [0, 2**-40, 0.01, 0.6, 0.99, 0.999999])
@pytest.mark.parametrize("size", [1, 2, 7, 40_000])
def test_smoothing_equals_that_of_pandas_and_leaves_out_nan(weight, size):
    numbers = np.random.default_rng(size)
    y = numbers.normal(size=size) * 10.0 ** numbers.integers(-9, 9, size)
    y[size // 2] = 1e300
    y[numbers.random(size) < 0.1] = math.nan
    expected = pandas.Series(y).ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean()
    expected[np.isnan(y)] = math.nan
    np.testing.assert_allclose(moving_average(y, weight), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("weight", [0.01, 0.6, 0.99])
@pytest.mark.parametrize("gaps", [3, 300, 5000])
@pytest.mark.parametrize("widest", [1.5, 40.0, 1e6])
def test_smoothing_by_steps_weighs_the_past_by_its_distance(weight, gaps, widest):
    numbers = np.random.default_rng(3)
    apart = np.ones(5000)
    apart[numbers.choice(5000, gaps, replace=False)] = widest ** numbers.random(gaps)
    y = numbers.normal(size=len(apart)) * 10.0 ** numbers.integers(-9, 9, len(apart))
    expected, total, weights = [], 0.0, 0.0
    for value, distance in zip(y, apart, strict=True):
        total, weights = value + weight**distance * total, 1 + weight**distance * weights
        expected.append(total / weights)
    step = np.cumsum(apart)
    np.testing.assert_allclose(moving_average(y, weight, step), expected, rtol=1e-5, atol=1e-9)
    *before, last = moving_average(np.append(y, 7.0), weight, np.append(step, 1e12))
    assert last == pytest.approx(7.0) and before == moving_average(y, weight, step).tolist()


def test_smoothing_keeps_nan_and_infinity_where_they_are():
    y = np.array([1.0, math.nan, 1.0, math.inf, -math.inf, 1.0])
    smoothed = moving_average(y, 0.9)
    assert np.array_equal(np.isfinite(smoothed), np.isfinite(y))
    np.testing.assert_allclose(smoothed[np.isfinite(y)], 1.0)
    assert smoothed[3] == math.inf
    for weight in (1, -0.1, 2):
        with pytest.raises(ValueError, match="0 ≤ weight < 1"):
            moving_average(np.ones(3), weight)
