"""Wide ResNets have the sizes and depths of the paper."""

import pytest

from labkit.config import ModelConfig
from labkit.models.registry import build_model


def build(depth: int, width: float):
    config = ModelConfig(model="wide_resnet", num_layers=depth, width_factor=width)
    return build_model(config, num_classes=10, image_shape=(32, 32, 3))


@pytest.mark.parametrize(
    ("depth", "width", "parameters"),
    [
        # Zagoruyko & Komodakis (2016), in millions; WRN-28-10 exactly as PyTorchCV counts it.
        (16, 4, 2.7),
        (40, 1, 0.6),
        (28, 10, 36_479_194 / 1e6),
    ],
)
def test_parameter_counts_equal_the_papers(depth, width, parameters):
    trainable = sum(weight.numpy().size for weight in build(depth, width).trainable_variables)
    assert trainable / 1e6 == pytest.approx(parameters, abs=0.05 if parameters < 3 else 1e-9)


def test_the_depth_includes_three_projections_and_the_first_convolution():
    model = build(16, 2)
    convolutions = [layer for layer in model.layers if layer.__class__.__name__ == "Conv2D"]
    assert len(convolutions) == 16
    assert sum(layer.kernel_size == (1, 1) for layer in convolutions) == 3


def test_a_width_of_one_needs_no_projection_in_the_first_stage():
    model = build(10, 1)
    assert sum(getattr(layer, "kernel_size", None) == (1, 1) for layer in model.layers) == 2
