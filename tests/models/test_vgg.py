"""VGG networks have the paper's configurations and the sizes of public implementations."""

import pytest

from labkit.analysis.architecture import summarize
from labkit.config import ModelConfig
from labkit.models.registry import build_model

# Simonyan & Zisserman (2014), table 1: the convolutions of columns A, B, D and E, by stage.
COLUMNS = {
    11: "64 | 128 | 256 256 | 512 512 | 512 512",
    13: "64 64 | 128 128 | 256 256 | 512 512 | 512 512",
    16: "64 64 | 128 128 | 256 256 256 | 512 512 512 | 512 512 512",
    19: "64 64 | 128 128 | 256 256 256 256 | 512 512 512 512 | 512 512 512 512",
}
# Millions of parameters and of multiply-adds in chenyaofo/pytorch-cifar-models, whose networks also have two
# dense layers of 512 units and biases in the convolutions.
PUBLISHED = {11: (9.76, 153.29), 13: (9.94, 228.79), 16: (15.25, 313.73), 19: (20.57, 398.66)}


@pytest.mark.parametrize("num_layers", COLUMNS)
def test_convolutions_and_sizes_equal_the_published_ones(num_layers):
    model = build_model(
        ModelConfig(model="vgg", num_layers=num_layers), num_classes=10, image_shape=(32, 32, 3)
    )
    stages: dict[int, list[str]] = {}
    for layer in model.layers:
        if layer.__class__.__name__ == "Conv2D":
            assert layer.kernel_size == (3, 3)
            stages.setdefault(layer.output.shape[1], []).append(str(layer.filters))
    assert list(stages) == [32, 16, 8, 4, 2]
    assert " | ".join(" ".join(filters) for filters in stages.values()) == COLUMNS[num_layers]

    summary = summarize(model)
    dense = 2 * 512 * 512
    convolution_biases = sum(int(width) for width in COLUMNS[num_layers].replace("|", "").split())
    parameters, multiply_adds = PUBLISHED[num_layers]
    added = dense + 2 * 512 + convolution_biases
    assert (summary.parameters + added) / 1e6 == pytest.approx(parameters, abs=0.0051)
    assert (summary.multiply_adds + dense) / 1e6 == pytest.approx(multiply_adds, abs=0.0051)
