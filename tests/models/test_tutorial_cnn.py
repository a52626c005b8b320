"""The tutorial's network has the published size and initial values."""

import numpy as np
import pytest

from labkit.analysis.architecture import summarize
from labkit.config import ModelConfig
from labkit.models.registry import build_model


def build(size: int):
    return build_model(ModelConfig(model="tutorial_cnn"), num_classes=10, image_shape=(size, size, 3))


def test_the_size_at_24x24_equals_the_tutorials():
    summary = summarize(build(24))
    assert summary.parameters == 1_068_298
    assert summary.multiply_adds == pytest.approx(19.5e6, rel=0.06)  # "about 19.5M"


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
