"""Intervals and tests, compared with scipy and with simulations."""

import numpy as np
import pytest
from scipy import stats

from labkit.analysis.inference import (
    fold_interval,
    mcnemar,
    mean_interval,
    paired_interval,
    single_interval,
    spread,
    t_quantile,
    welch_interval,
)


@pytest.mark.parametrize("degrees", [1, 1.37, 2, 3.9, 17.2, 500, 1e5])
def test_quantiles_are_scipys_also_between_whole_degrees(degrees):
    assert t_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-4)


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 5), (10, 2)])
def test_welchs_interval_and_that_of_a_mean_are_scipys(first, second):
    random = np.random.default_rng(first)
    a, b = random.normal(0.8, 0.01, first), random.normal(0.82, 0.05, second)
    found, expected = welch_interval(a, b), stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-3)
    assert found.mean == pytest.approx(b.mean() - a.mean())
    mean, reference = mean_interval(a), stats.ttest_1samp(a, 0).confidence_interval()
    assert (mean.low, mean.high) == pytest.approx((reference.low, reference.high), rel=1e-3)


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_the_interval_of_folds_is_as_much_wider_as_the_variance_is_corrected(folds):
    values = np.random.default_rng(folds).normal(0.8, 0.02, folds)
    found, plain = fold_interval(values, folds), stats.ttest_1samp(values, 0).confidence_interval()
    wider = np.sqrt((1 / folds + (1 / folds) / (1 - 1 / folds)) / (1 / folds))
    assert found.high - found.low == pytest.approx(wider * (plain.high - plain.low), rel=1e-3)
    assert found.mean == pytest.approx(values.mean()) and found.count == folds


def test_one_value_against_several_is_students_test():
    values, single = [0.81, 0.84, 0.80], 0.9
    expected = stats.ttest_ind([single], values, equal_var=True).confidence_interval()
    found = single_interval(values, single)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-3)


def test_values_without_spread_have_an_interval_without_width():
    """Also where the mean of equal values isn't that value, by rounding: three times 0.1 is not 0.3."""
    found = welch_interval([0.5, 0.5], [0.75, 0.75, 0.75])
    assert (found.low, found.mean, found.high) == (0.25, 0.25, 0.25)
    for equal in ([0.1] * 3, [0.7] * 3):
        for found in (welch_interval(equal, [0.75] * 3), single_interval(equal, 0.75), mean_interval(equal)):
            assert found.low == found.mean == found.high


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_has_no_spread(value):
    assert np.isnan(spread([value, 1.0]).std)
    assert spread([value]).std is None


def test_mcnemars_test_is_the_exact_binomial_one():
    random = np.random.default_rng(0)
    first, second = random.random(20_000) < 0.7, random.random(20_000) < 0.71
    found = mcnemar(first, second)
    count = found.only_first + found.only_second
    assert found.p == pytest.approx(stats.binomtest(found.only_second, count).pvalue, rel=1e-9)


@pytest.mark.parametrize("count", [30, 2000])
def test_the_paired_interval_covers_the_true_difference(count):
    """95 % of intervals hold the truth, and at 2,000 images it is the interval of the differences."""
    random, true, held = np.random.default_rng(1), 0.05, 0
    for _ in range(2000):
        kind = random.random(count)
        first, second = kind < 0.70, (kind < 0.63) | (kind > 0.88)  # 7 % lost, 12 % won
        held += (found := paired_interval(first, second)).low <= true <= found.high
    assert held / 2000 == pytest.approx(0.95, abs=0.025)
    if count == 2000:
        plain = mean_interval(second.astype(float) - first)
        assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=1e-3)


def test_two_that_never_differ_may_still_differ_on_other_images():
    same = np.ones(100, bool)
    found = paired_interval(same, same)
    assert found.mean == 0
    assert -0.05 < found.low < 0 < found.high < 0.05
