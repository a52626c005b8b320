"""Smoothing counts steps, not points; what isn't finite stays where it is and changes nothing else."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.charts.smoothing import EXPONENTIAL, GAUSSIAN, KINDS, WINDOW, smoothed, spacing

AMOUNTS = {EXPONENTIAL: 0.9, GAUSSIAN: 8.0, WINDOW: 20.0}
STEPS = np.arange(1.0, 2001.0)
NOISE = np.random.default_rng(0).normal(size=len(STEPS))


@pytest.mark.parametrize("kind", KINDS)
@given(
    values=st.lists(
        st.tuples(
            st.integers(1, 50), st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])
        ),
        max_size=60,
    )
)
def test_what_is_not_finite_stays_and_the_rest_is_within_the_values(kind, values):
    step = np.cumsum([float(apart) for apart, _ in values])
    y = np.array([value for _, value in values])
    before = y.copy()
    made = smoothed(y, step, kind, AMOUNTS[kind], spacing(step))
    assert np.array_equal(y, before, equal_nan=True), "the curve itself stays as it is"
    finite = np.isfinite(y)
    np.testing.assert_array_equal(made[~finite], y[~finite])
    if finite.any():
        size = np.abs(y[finite]).max()
        assert (made[finite] <= y[finite].max() + 1e-9 * size).all()
        assert (made[finite] >= y[finite].min() - 1e-9 * size).all()
        without = smoothed(y[finite], step[finite], kind, AMOUNTS[kind], spacing(step))
        np.testing.assert_allclose(made[finite], without, rtol=1e-9, atol=1e-12 * size)


@pytest.mark.parametrize("kind", KINDS)
def test_a_metric_of_every_twentieth_step_is_hardly_smoothed_where_each_step_is_much(kind):
    dense = smoothed(NOISE, STEPS, kind, AMOUNTS[kind], 1.0)
    sparse = smoothed(NOISE[::20], STEPS[::20], kind, AMOUNTS[kind], 1.0)
    assert dense.std() < 0.4 * NOISE.std()
    assert np.corrcoef(sparse, NOISE[::20])[0, 1] > 0.9


def test_the_average_of_training_rows_is_the_usual_one_whatever_their_distance():
    one = smoothed(NOISE, STEPS, EXPONENTIAL, 0.6, spacing(STEPS))
    fifty = smoothed(NOISE, 50 * STEPS, EXPONENTIAL, 0.6, spacing(50 * STEPS))
    by_hand, value, weight = [], 0.0, 0.0
    for noise in NOISE:  # as in TensorBoard
        value, weight = 0.6 * value + 0.4 * noise, 0.6 * weight + 0.4
        by_hand.append(value / weight)
    np.testing.assert_allclose(one, by_hand, rtol=1e-9)
    np.testing.assert_allclose(fifty, one, rtol=1e-9)


def test_a_window_is_the_mean_of_the_steps_on_either_side():
    kept = np.delete(np.arange(len(STEPS)), [5, 6, 7, 400])
    made = smoothed(NOISE[kept], STEPS[kept], WINDOW, 20.0, 1.0)
    expected = [NOISE[kept][np.abs(STEPS[kept] - step) <= 10].mean() for step in STEPS[kept]]
    np.testing.assert_allclose(made, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sigma", [10.0, 40.0])
def test_gaussian_is_nearly_the_mean_with_the_weights_of_a_gaussian(sigma):
    made = smoothed(NOISE, STEPS, GAUSSIAN, sigma, 1.0)
    weights = np.exp(-(((STEPS[:, None] - STEPS[None]) / sigma) ** 2) / 2)
    expected = weights @ NOISE / weights.sum(axis=1)
    inner = slice(int(4 * sigma), -int(4 * sigma))  # at both ends, the windows are cut off
    assert np.abs(made - expected)[inner].max() < 0.3 * expected.std()
    assert np.corrcoef(made[inner], expected[inner])[0, 1] > 0.99
    assert made.std() == pytest.approx(expected.std(), rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spike_spoils_nothing_far_from_it(kind):
    spiky = NOISE.copy()
    spiky[100] = 1e38
    far = slice(1900, 2000)  # the average forgets slowly: 0.9 ** 1800
    plain = smoothed(NOISE, STEPS, kind, AMOUNTS[kind], 1.0)
    np.testing.assert_allclose(smoothed(spiky, STEPS, kind, AMOUNTS[kind], 1.0)[far], plain[far], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_one_point_and_steps_that_are_not_known(kind):
    empty = np.zeros(0)
    assert len(smoothed(empty, empty, kind, AMOUNTS[kind], spacing(empty))) == 0
    assert smoothed(np.ones(1), np.ones(1), kind, AMOUNTS[kind], spacing(np.ones(1))).tolist() == [1.0]
    odd = smoothed(np.ones(3), np.array([1.0, math.nan, 3.0]), kind, AMOUNTS[kind], 1.0)
    assert odd.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_million_steps_take_less_than_a_second(kind):
    step = np.arange(1e6)
    y = np.random.default_rng(1).normal(size=len(step))
    amount = 0.99 if kind == EXPONENTIAL else 500.0
    started = time.monotonic()
    smoothed(y, step, kind, amount, 1.0)
    assert time.monotonic() - started < 3, "it is computed once a second while a run trains"
