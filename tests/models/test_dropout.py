"""Dropout: where, which features, how many, and the same on any number of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import parse_model_name
from labkit.models import convnets
from labkit.models.layers import Dropout, dropout_draws
from labkit.models.registry import build_model


def test_a_share_is_dropped_and_the_others_are_scaled():
    layer, ones = Dropout(0.4, seed=3), tf.ones([500, 64])
    with dropout_draws(7, 0, 500):
        found = layer(ones, training=True).numpy()
        np.testing.assert_array_equal(layer(ones, training=False), ones)
    np.testing.assert_allclose(np.unique(found), [0.0, 1 / 0.6], rtol=1e-6)
    assert (found == 0).mean() == pytest.approx(0.4, abs=0.01)
    assert found.mean() == pytest.approx(1.0, abs=0.02)
    np.testing.assert_array_equal(layer(ones, training=True), ones)  # no step is named


def test_masks_depend_on_step_seed_and_position_alone():
    ones = tf.ones([12, 30])

    def masks(seed, step, first, count):
        with dropout_draws(tf.constant(step, tf.int64), first, 12):
            return Dropout(0.5, seed)(ones[:count], training=True).numpy()

    whole = masks(1, 5, 0, 12)
    np.testing.assert_array_equal(whole, masks(1, 5, 0, 12))
    np.testing.assert_array_equal(whole, np.concatenate([masks(1, 5, first, 4) for first in (0, 4, 8)]))
    for other in (masks(2, 5, 0, 12), masks(1, 6, 0, 12), np.roll(whole, 1, axis=0)):
        assert 0.35 < (other == whole).mean() < 0.65


def test_images_share_the_mask_that_the_noise_shape_says():
    layer, ones = Dropout(0.5, seed=1), tf.ones([12, 30])
    layer.noise_shape = (1, None)
    with dropout_draws(tf.constant(5, tf.int64), 4, 16):  # the last of two replicas or more
        found = layer(ones, training=True).numpy()
    with dropout_draws(tf.constant(5, tf.int64), 0, 16):
        np.testing.assert_array_equal(found, layer(ones, training=True))
    np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))
    assert 0 < (found[0] == 0).sum() < 30


def test_a_layer_that_is_called_twice_draws_other_masks_the_second_time():
    layer, ones = Dropout(0.5, seed=1), tf.ones([12, 30])
    for _ in range(2):  # in each step
        with dropout_draws(tf.constant(5, tf.int64), 0, 12):
            first, second = (layer(ones, training=True).numpy() for _ in range(2))
        assert 0.35 < (first == second).mean() < 0.65
        with dropout_draws(tf.constant(5, tf.int64), 0, 12):
            np.testing.assert_array_equal(first, layer(ones, training=True))


@pytest.mark.parametrize(
    "name", ["resnet8", "wide_resnet10_1", "vgg11", "tutorial_cnn", "fast_0.25", "fast_residual_0.25"]
)
def test_every_network_has_it_before_the_logits(name):
    config = ModelConfig(**parse_model_name(name), dropout_rate=0.5)
    model = build_model(config, num_classes=10, image_shape=(32, 32, 3), seed=1)
    [layer] = dropouts(model)
    assert model.get_layer("logits").input is layer.output
    plain = build_model(
        ModelConfig(**parse_model_name(name)), num_classes=10, image_shape=(32, 32, 3), seed=1
    )
    images = tf.random.stateless_normal([4, 32, 32, 3], [0, 1])
    np.testing.assert_allclose(model(images), plain(images), atol=1e-5)
    with dropout_draws(0, 0, 4):
        assert np.abs(model(images, training=True) - plain(images, training=True)).max() > 1e-3


def test_the_published_vgg_has_it_behind_both_dense_layers(monkeypatch):
    """Simonyan & Zisserman (2014), section 3.1. The initial weights are those of a network without it."""
    monkeypatch.setattr(convnets, "DENSE_UNITS", 64)  # instead of 4,096, which take seconds to draw
    plain, model = (
        build_model(
            ModelConfig(model="imagenet_vgg", num_layers=11, dropout_rate=rate),
            num_classes=10,
            image_shape=(32, 32, 3),
            seed=1,
        )
        for rate in (0.0, 0.5)
    )
    assert not dropouts(plain)
    first, second = dropouts(model)
    assert model.get_layer("stage6_dense2").input is first.output
    assert first.input is model.get_layer("stage6_relu1").output
    assert model.get_layer("logits").input is second.output
    assert second.input is model.get_layer("stage6_relu2").output
    assert first.seed != second.seed
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def dropouts(model):
    return [layer for layer in model.layers if isinstance(layer, Dropout)]
