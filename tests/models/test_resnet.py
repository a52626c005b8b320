"""ResNets: sizes from the papers, shapes, seeds, layouts."""

import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.models.registry import build_model, model_name

IMAGES = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)


def build(seed: int = 0, data_format: str = "channels_last", **fields):
    return build_model(
        ModelConfig(**fields), num_classes=10, image_shape=(32, 32, 3), seed=seed, data_format=data_format
    )


@pytest.mark.parametrize(
    ("num_layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
)
def test_parameters_are_those_of_he_et_al_2015_table_6(num_layers, millions):
    trainable = sum(int(np.prod(weight.shape)) for weight in build(num_layers=num_layers).trainable_variables)
    assert trainable / 1e6 == pytest.approx(millions, abs=0.005 if millions < 1 else 0.05)


@pytest.mark.parametrize(
    ("version", "block"), [(1, "basic"), (2, "basic"), (1, "bottleneck"), (2, "bottleneck")]
)
def test_depth_is_the_number_of_layers_with_weights_on_the_longest_path(version, block):
    num_layers = 20 if block == "basic" else 29
    model = build(num_layers=num_layers, resnet_version=version, block=block)
    kernels = [layer for layer in model.layers if layer.__class__.__name__ in ("Conv2D", "Dense")]
    # A bottleneck ResNet projects once in each of its three stages; these stand beside the path.
    projections = 0 if block == "basic" else 3
    assert len(kernels) - projections == num_layers
    assert model(IMAGES).shape == (2, 10)


def test_the_seed_decides_the_initial_weights():
    first, same, other = build(1, num_layers=8), build(1, num_layers=8), build(2, num_layers=8)
    for a, b in zip(first.weights, same.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    kernels = [index for index, weight in enumerate(first.weights) if len(weight.shape) == 4]
    assert all(np.abs(np.asarray(first.weights[i]) - np.asarray(other.weights[i])).max() > 0 for i in kernels)
    # No two convolutions of one shape start equal.
    inner = [np.asarray(first.weights[i]) for i in kernels if first.weights[i].shape == (3, 3, 16, 16)]
    assert len(inner) == 2
    assert np.abs(inner[0] - inner[1]).max() > 0


@pytest.mark.parametrize("version", [1, 2])
def test_layouts_give_the_same_logits(version):
    last = build(num_layers=8, resnet_version=version)
    first = build(num_layers=8, resnet_version=version, data_format="channels_first")
    np.testing.assert_allclose(last(IMAGES), first(IMAGES), rtol=1e-4, atol=1e-4)


def test_logits_stay_float32_in_mixed_precision():
    model = build(num_layers=8, precision="mixed_bfloat16")
    assert model(IMAGES).dtype == "float32"
    assert {str(weight.dtype) for weight in model.weights} == {"float32"}
    reference = build(num_layers=8)
    np.testing.assert_allclose(model(IMAGES), reference(IMAGES), atol=0.1)


def test_float64_is_the_same_network_all_the_way():
    model = build(num_layers=8, precision="float64")
    assert model(IMAGES).dtype == "float64"
    assert {str(weight.dtype) for weight in model.weights} == {"float64"}
    reference = build(num_layers=8)
    reference.set_weights(model.get_weights())
    for training in (False, True):
        np.testing.assert_allclose(
            model(IMAGES, training=training), reference(IMAGES, training=training), rtol=1e-4, atol=1e-4
        )


def test_names():
    assert model_name(ModelConfig(num_layers=20)) == "resnet20"
    assert (
        model_name(ModelConfig(num_layers=164, resnet_version=2, block="bottleneck"))
        == "resnet164-v2-bottleneck"
    )
