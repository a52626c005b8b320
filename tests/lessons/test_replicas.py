"""What lesson 04 computes: an all-reduce that sums, counted bytes, statistics, the noise scale."""

import numpy as np
import pytest

from course.lessons.replicas import figures
from course.lessons.replicas.moments import Placement, noise_scale, slice_statistics, step_seconds
from course.lessons.replicas.ring import EXCHANGES, count_exchanges, ring, ring_moments
from course.lessons.replicas.sweep import DenseNetwork
from labkit import figures as plots


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("name", EXCHANGES)
def test_every_worker_gets_the_sum(name, workers):
    random = np.random.default_rng(workers)
    arrays = [random.normal(size=31) for _ in range(workers)]  # which no number of workers divides
    for result in EXCHANGES[name]([array.copy() for array in arrays]).results:
        np.testing.assert_allclose(result, sum(arrays))


def test_a_ring_sends_the_least_bytes_and_the_most_messages():
    found = count_exchanges([2, 4, 16])
    assert [exchange.busiest_share for exchange in found["ring"]] == pytest.approx([1, 1.5, 1.875])
    assert [exchange.steps for exchange in found["ring"]] == [2, 6, 30]
    assert [exchange.busiest_share for exchange in found["all to all"]] == pytest.approx([1, 3, 15])
    links = {(message.sender, message.receiver) for message in ring([np.ones(4)] * 4).messages}
    assert links == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_the_drawn_moments_end_with_all_contributions():
    moments = ring_moments(4)
    assert len(moments) == 7
    middle = [sum(len(chunk) == 4 for chunk in worker) for worker in moments[3].contributions]
    assert middle == [1, 1, 1, 1], "after reduce-scatter each worker has one complete chunk"
    assert all(len(chunk) == 4 for worker in moments[-1].contributions for chunk in worker)
    for moment in (moments[0], moments[2]):
        figure = figures.ring_state(moment)
        assert moment.title in repr(figure)
        assert plots.png(figure).startswith(b"\x89PNG")


def test_placements_draw_a_device_that_computes_nothing():
    central = Placement(
        "CentralStorageStrategy", "CPU", ("/device:GPU:0", "/device:GPU:1"), ("/device:CPU:0",)
    )
    figure = figures.placements([central])
    assert "variable on CPU:0" in repr(figure)
    assert "no replica" in {text.get_text() for text in figure.axes[0].texts}


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


@pytest.fixture(scope="module")
def sweep():
    random = np.random.default_rng(3)
    labels = random.integers(0, 4, 400)
    images = (random.normal(size=(4, 12))[labels] + random.normal(size=(400, 12))).astype(np.float32)
    return DenseNetwork(images, labels.astype(np.int32))


def test_a_scaled_loss_is_a_scaled_learning_rate(sweep):
    losses = sweep.train([0.01, 0.04], 20, 16)
    scaled = sweep.train([0.01], 20, 16, scale=4)
    np.testing.assert_allclose(scaled[0], losses[1], rtol=1e-5)
    assert losses[0, -1] < losses[0, 0]
    assert np.isinf(sweep.train([1e20], 20, 16)[0, -1])


def test_gradients_of_slices_average_to_that_of_the_batch(sweep):
    weights = sweep.weights_after(0.05, steps=5, batch=16)
    index = np.arange(32)
    whole = sweep.gradients(weights, index[None])[0]
    halves = sweep.gradients(weights, index.reshape(2, 16))
    np.testing.assert_allclose(halves.mean(0), whole, atol=1e-6)


@pytest.mark.long
def test_more_images_need_fewer_steps(sweep):
    few, many = sweep.steps_to(0.9, [4, 64], [0.05, 0.2])
    assert 0 < many <= few < np.inf
    assert sweep.steps_to(-1.0, [64], [0.1])[0] == np.inf
