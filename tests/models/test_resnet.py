"""ResNets: sizes from the papers, depth, initial weights."""

import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.models.registry import build_model

IMAGES = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)


def build(seed: int = 0, **fields):
    return build_model(ModelConfig(**fields), num_classes=10, image_shape=(32, 32, 3), seed=seed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
)
def test_parameter_counts_equal_he_et_al_2015_table_6(num_layers, millions):
    trainable = sum(int(np.prod(weight.shape)) for weight in build(num_layers=num_layers).trainable_variables)
    assert trainable / 1e6 == pytest.approx(millions, abs=0.005 if millions < 1 else 0.05)


@pytest.mark.parametrize(
    ("version", "block"), [(1, "basic"), (2, "basic"), (1, "bottleneck"), (2, "bottleneck")]
)
def test_depth_is_the_number_of_layers_with_weights_on_the_longest_path(version, block):
    num_layers = 20 if block == "basic" else 29
    model = build(num_layers=num_layers, resnet_version=version, block=block)
    kernels = [layer for layer in model.layers if layer.__class__.__name__ in ("Conv2D", "Dense")]
    # A bottleneck ResNet has a projection in each of its three stages; these are not on the path.
    projections = 0 if block == "basic" else 3
    assert len(kernels) - projections == num_layers
    assert model(IMAGES).shape == (2, 10)


def test_convolutions_of_the_same_shape_have_different_initial_weights():
    kernels = [np.asarray(weight) for weight in build(num_layers=8).weights if weight.shape == (3, 3, 16, 16)]
    assert len(kernels) == 2
    assert np.abs(kernels[0] - kernels[1]).max() > 0
