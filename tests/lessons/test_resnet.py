"""Plain networks differ from ResNets by their additions alone, and measured fields are those counted."""

import numpy as np
import pytest

from course.lessons import resnet
from labkit.config import Config, ModelConfig
from labkit.models.registry import build_model

CONFIG = Config.from_flat({"train_steps": 3, "train_batch_size": 8, "learning_rate": 0.01})


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, size=(16, 16, 16, 3), dtype=np.uint8)
    images = (pixels / 128.0 - 1).astype(np.float32)
    return resnet.SmallImages(pixels, images, np.arange(16, dtype=np.int32) % 10, tuple("abcdefghij"))


def test_with_shortcuts_it_is_labkits_resnet():
    small = resnet.small_network(8, size=32, seed=3)
    labkits = build_model(ModelConfig(num_layers=8), num_classes=10, image_shape=(32, 32, 3), seed=3)
    images = np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)
    assert np.array_equal(small(images, training=True), labkits(images, training=True))


def test_a_plain_network_has_the_weights_of_its_resnet_and_another_output():
    plain, residual = (resnet.small_network(8, shortcuts=shortcuts) for shortcuts in (False, True))
    for one, other in zip(plain.get_weights(), residual.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert not any("add" in layer.name or "pad" in layer.name for layer in plain.layers)
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)
    assert not np.allclose(plain(images, training=True), residual(images, training=True), atol=0.1)


def test_training_is_repeatable_and_observing_changes_nothing(data):
    model = resnet.small_network(8)
    before = model.get_weights()
    seen = resnet.observe(model, data, CONFIG)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
    assert seen.layers[-1] == "logits"
    assert seen.gradient_norm[0] > 0
    first = resnet.train_small(model, data, CONFIG)
    again = resnet.train_small(resnet.small_network(8), data, CONFIG)
    assert first.losses.shape == (3,)
    np.testing.assert_allclose(first.losses, again.losses, rtol=1e-3)
    assert not np.array_equal(before[0], model.get_weights()[0])


@pytest.mark.parametrize("shortcuts", [True, False])
def test_the_field_by_gradient_is_that_of_the_formula(shortcuts):
    model = resnet.small_network(8, size=40, shortcuts=shortcuts)
    fields = resnet.gradient_fields(model, ["stem_relu1", "stage2_block1_relu2", "stage3_block1_relu2"])
    assert [field.counted for field in fields] == [field.measured for field in fields] == [3, 13, 25]
    for field in fields:
        assert field.strength.sum() == pytest.approx(1)
        assert field.core <= field.measured


@pytest.mark.parametrize("moved", [-8, 8])
def test_the_figure_of_batch_normalization_shows_labkits_layer(moved):
    middle, right = resnet.batch_norm_figure(moved).axes[1:]
    others = [axis.lines[1].get_ydata() for axis in (middle, right)]
    assert np.sign(others[0].mean()) == -np.sign(moved)
    np.testing.assert_allclose(others[1], [-1.2, -0.8, -0.4, -0.1, 0.2, 0.5, 0.9], rtol=1e-4)
