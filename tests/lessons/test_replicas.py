"""What lesson 04 computes: an all-reduce that sums, counted bytes, statistics, the noise scale."""

import numpy as np
import pytest

from course.lessons.replicas.moments import noise_scale, slice_statistics, step_seconds
from course.lessons.replicas.ring import METHODS, all_reduce, count_exchanges, ring_moments


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("name", METHODS)
def test_every_worker_gets_the_sum(name, workers):
    random = np.random.default_rng(workers)
    arrays = [random.normal(size=31) for _ in range(workers)]  # which no number of workers divides
    for result in all_reduce(name, arrays).results:
        np.testing.assert_allclose(result, sum(arrays))


def test_a_ring_sends_the_least_bytes_and_the_most_messages():
    found = count_exchanges([2, 4, 16])
    assert [exchange.busiest_share for exchange in found["ring"]] == pytest.approx([1, 1.5, 1.875])
    assert [exchange.steps for exchange in found["ring"]] == [2, 6, 30]
    assert [exchange.busiest_share for exchange in found["all to all"]] == pytest.approx([1, 3, 15])
    links = {(message.sender, message.receiver) for message in all_reduce("ring", [np.ones(4)] * 4).messages}
    assert links == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_a_drawing_shows_each_sum_complete_after_half_of_the_steps_and_everywhere_at_the_end():
    moments = ring_moments(4)
    assert [sum(len(chunk) == 4 for own in m.contributions for chunk in own) for m in moments] == [
        0, 0, 0, 4, 8, 12, 16,
    ]  # fmt: skip
    assert moments[1].contributions[1] == [{0, 1}, {1}, {1}, {1}]
    assert moments[4].title == "step 4: all-gather 1 of 3"


def test_slice_statistics_are_those_of_the_slices():
    values = np.random.default_rng(0).normal(size=(8, 5, 3)).astype(np.float32)
    means, variances = slice_statistics(values, 2)
    np.testing.assert_allclose(means[1], values[4:].mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(variances[0], values[:4].var((0, 1)), rtol=1e-5)


def test_the_noise_scale_solves_both_equations():
    squared, trace = 0.5, 120.0
    assert noise_scale(8, 512, squared + trace / 8, squared + trace / 512) == pytest.approx(240)


def test_a_step_without_communication_scales_ideally():
    replicas = np.array([1, 2, 8])
    assert step_seconds(replicas, 0.8, 1e6, np.inf, 0.0) == pytest.approx([0.8, 0.4, 0.1])
    slow = step_seconds(replicas, 0.8, 1e6, 1e6, 0.001)
    assert slow == pytest.approx([0.8, 0.4 + 1 + 0.002, 0.1 + 1.75 + 0.014])
