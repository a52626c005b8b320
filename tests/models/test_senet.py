"""SE-ResNets: the parameters and the effect of squeeze and excitation."""

import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.models.registry import build_model


def build(**fields):
    return build_model(ModelConfig(**fields), num_classes=10, image_shape=(32, 32, 3))


def parameters(**fields) -> int:
    return build(**fields).count_params()


@pytest.mark.parametrize("num_layers", [8, 20])
def test_the_added_parameters_are_two_dense_layers_per_block(num_layers):
    # Hu et al. (2017), section 4: 2/r times the square of the channels for each block, plus biases.
    blocks = (num_layers - 2) // 6
    added = sum(2 * c * (c // 16) + c // 16 + c for c in (16, 32, 64)) * blocks
    found = parameters(model="se_resnet", num_layers=num_layers) - parameters(num_layers=num_layers)
    assert found == added
    if num_layers == 20:
        assert added == 274_847 - 272_474  # PyTorchCV's SE-ResNet-20 and ResNet-20


def test_factors_of_zero_leave_only_the_shortcuts():
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    model = build(model="se_resnet", num_layers=8, resnet_version=2)
    plain = build(num_layers=8, resnet_version=2)
    for layer in model.layers:
        if layer.__class__.__name__ == "Dense" and layer.name != "logits":
            layer.bias.assign(np.full(layer.bias.shape, -100.0))  # factors of 0
    assert np.abs(model(images) - plain(images)).max() > 0
    kernels = [layer for layer in plain.layers if layer.__class__.__name__ == "Conv2D"]
    for layer in kernels[1:]:
        layer.kernel.assign(np.zeros(layer.kernel.shape))
    stem = next(layer for layer in model.layers if layer.__class__.__name__ == "Conv2D")
    kernels[0].kernel.assign(stem.kernel)
    plain.get_layer("logits").set_weights(model.get_layer("logits").get_weights())
    np.testing.assert_allclose(model(images), plain(images), rtol=1e-5, atol=1e-5)
