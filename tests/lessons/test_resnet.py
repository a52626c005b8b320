"""What lessons 02 and 03 say of plain networks and ResNets, of descent, and of a loss's surface is so."""

import numpy as np
import pytest

from course.lessons.resnet.figures import batch_norm_figure
from course.lessons.resnet.networks import SmallImages, observe, small_network, train_small
from course.lessons.the_loop.figures import CURVATURE, MINIMUM, descend
from course.lessons.the_loop.surface import filter_normalized, loss_surface
from labkit.config import Config, ModelConfig, OptimizerConfig
from labkit.figures import widgets as schedule
from labkit.models.registry import build_model

CONFIG = Config.from_flat({"train_steps": 3, "train_batch_size": 8, "learning_rate": 0.01})


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, size=(16, 16, 16, 3), dtype=np.uint8)
    images = (pixels / 128.0 - 1).astype(np.float32)
    return SmallImages(images, np.arange(16, dtype=np.int32) % 10, pixels, tuple("abcdefghij"))


def test_with_shortcuts_it_is_labkits_resnet():
    small = small_network(8, size=32, seed=3)
    labkits = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3), seed=3)
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    assert np.array_equal(small(images, training=True), labkits(images, training=True))


def test_a_plain_network_has_the_weights_of_its_resnet_and_another_output():
    plain, residual = (small_network(8, shortcuts=shortcuts) for shortcuts in (False, True))
    for one, other in zip(plain.get_weights(), residual.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert not any("add" in layer.name or "pad" in layer.name for layer in plain.layers)
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
    assert not np.allclose(plain(images, training=True), residual(images, training=True), atol=0.1)


def test_training_is_repeatable_and_observing_changes_nothing(data):
    model = small_network(8)
    before = model.get_weights()
    seen = observe(model, data, CONFIG)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
    assert seen.layers[-1] == "logits"
    assert seen.gradient_norm[0] > 0
    first = train_small(model, data, CONFIG)
    again = train_small(small_network(8), data, CONFIG)
    assert first.losses.shape == (3,)
    np.testing.assert_allclose(first.losses, again.losses, rtol=1e-3)
    assert not np.array_equal(before[0], model.get_weights()[0])


@pytest.mark.parametrize("moved", [-8, 8])
def test_the_figure_of_batch_normalization_shows_labkits_layer(moved):
    middle, right = batch_norm_figure(moved).axes[1:]
    others = [axis.lines[1].get_ydata() for axis in (middle, right)]
    assert np.sign(others[0].mean()) == -np.sign(moved)
    np.testing.assert_allclose(others[1], [-1.2, -0.8, -0.4, -0.1, 0.2, 0.5, 0.9], rtol=1e-4)


# ---- lesson 03 ------------------------------------------------------------------------------------------


def test_descent_reaches_the_minimum_and_decay_moves_it_by_the_formula():
    np.testing.assert_allclose(descend(0.03, 0.5, steps=400)[-1], MINIMUM, atol=1e-4)
    ends = descend(0.03, 0.5, 3.0, steps=400)[-1]
    np.testing.assert_allclose(ends, CURVATURE * MINIMUM / (CURVATURE + 3.0), atol=1e-4)


def test_a_filter_of_a_direction_has_the_norm_of_the_networks_filter():
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape).astype(np.float32) for shape in ((3, 3, 4, 5), (7,), (6, 2))]
    kernel, vector, dense = filter_normalized(weights, 1)
    for found, weight, axes in ((kernel, weights[0], (0, 1, 2)), (dense, weights[2], 0)):
        np.testing.assert_allclose((found**2).sum(axis=axes), (weight**2).sum(axis=axes), rtol=1e-5)
    assert not vector.any()
    assert not np.allclose(kernel, filter_normalized(weights, 2)[0])


def test_the_middle_of_a_surface_is_the_networks_loss_and_the_weights_stay():
    model = small_network(8)
    images = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype(np.float32)
    labels, before = np.arange(6, dtype=np.int32), model.get_weights()
    surface = loss_surface(model, images, labels, points=3)
    logits = model(images, training=True).numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert surface.center == pytest.approx(-log_p[np.arange(6), labels].mean(), rel=1e-4)
    assert surface.losses.shape == (3, 3)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


def test_the_designer_draws_the_schedule_that_its_controls_say(monkeypatch):
    drawn = []
    draw = schedule.schedule_figure

    def watched(configs, *arguments):
        drawn.append(configs)
        return draw(configs, *arguments)

    monkeypatch.setattr(schedule, "schedule_figure", watched)
    box = schedule.schedule_designer(0.1, 10, 20)
    name, rate, warmup, _ = box.children[0].children
    assert box.children[1].layout.display == "none"  # the static figure shows the four
    name.value, rate.value, warmup.value = "cosine", 1.0, 2
    assert drawn[-1] == {
        "cosine": OptimizerConfig(learning_rate=1.0, learning_rate_schedule="cosine", warmup_steps=40)
    }
    assert box.children[1].layout.display is None
