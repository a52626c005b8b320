"""The tutorial's network has the published size and initial values."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.analysis.architecture import summarize
from labkit.config import Config, ModelConfig
from labkit.config.presets import preset_values
from labkit.models.registry import build_model
from labkit.optim.optimizers import make_optimizer


def build(size: int):
    return build_model(ModelConfig(model="tutorial_cnn"), num_classes=10, image_shape=(size, size, 3))


def test_the_size_at_24x24_equals_the_tutorials():
    summary = summarize(build(24))
    assert summary.parameters == 1_068_298
    assert summary.multiply_adds == pytest.approx(19.5e6, rel=0.06)  # "about 19.5M"


def test_the_preset_is_the_tutorials_network_and_decays_its_two_hidden_layers():
    config = Config.from_flat(preset_values("tutorial_2017"))
    size = config.data.crop_size
    assert size is not None
    model = build_model(config.model, num_classes=10, image_shape=(size, size, 3))
    assert summarize(model).parameters == 1_068_298
    optimizer = make_optimizer(model, config.optimizer)
    # As in the graph of 2017: two of ten variables have a loss wd * l2_loss(w), whose gradient is wd * w.
    gradients = [tf.zeros(weight.shape) for weight in model.trainable_variables]
    before = [weight.numpy() for weight in model.trainable_variables]

    @tf.function
    def step():
        def update(strategy):
            optimizer.apply(strategy, gradients, tf.constant(0.5))

        tf.distribute.get_replica_context().merge_call(update)

    step()
    moved = []
    for weight, old in zip(model.trainable_variables, before, strict=True):
        if np.any(weight.numpy() != old):
            moved.append(weight.path)
            np.testing.assert_allclose(weight, old - 0.5 * 0.004 * old, rtol=1e-6)
    assert moved == ["stage3_dense1/kernel", "stage3_dense2/kernel"]


def test_initial_values():
    model = build(32)
    layers = [layer for layer in model.layers if layer.weights]
    expected = [(5e-2, 0.0), (5e-2, 0.1), (0.04, 0.1), (0.04, 0.1), (1 / 192, 0.0)]
    for layer, (stddev, bias) in zip(layers, expected, strict=True):
        kernel = np.asarray(layer.kernel)
        np.testing.assert_allclose(layer.bias, bias, rtol=1e-6)
        # Truncating at two standard deviations reduces the standard deviation to 0.88 of its value.
        assert np.abs(kernel).max() <= 2 * stddev + 1e-6
        assert kernel.std() == pytest.approx(0.88 * stddev, rel=0.05)
