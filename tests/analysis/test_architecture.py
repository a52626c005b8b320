"""A model by stages, against He et al. (2015), table 6 and section 4.2."""

import pytest

from labkit.analysis.architecture import summarize
from labkit.config import ModelConfig
from labkit.models.registry import build_model


def summary_of(**values):
    return summarize(build_model(ModelConfig(**values), num_classes=10, image_shape=(32, 32, 3)))


@pytest.mark.parametrize("num_layers", [8, 20])
def test_stages_of_the_paper(num_layers):
    summary = summary_of(num_layers=num_layers)
    n = (num_layers - 2) // 6
    assert [(stage.name, stage.channels, stage.layers) for stage in summary.stages] == [
        ("32×32", 16, 2 * n + 1),
        ("16×16", 32, 2 * n),
        ("8×8", 64, 2 * n),
        ("logits", 10, 1),
    ]
    assert sum(stage.layers for stage in summary.stages) == num_layers


def test_parameters_and_arithmetic_of_resnet20():
    summary = summary_of(num_layers=20)
    assert summary.parameters == pytest.approx(0.27e6, rel=0.01)  # table 6
    # 3×3 kernels: 27·16 inputs a pixel in the first layer, then 6 layers at each resolution, two of which
    # have half of the input channels; 64×10 in the last.
    by_hand = 1024 * 9 * (3 * 16 + 6 * 16 * 16) + 256 * 9 * (16 * 32 + 5 * 32 * 32)
    by_hand += 64 * 9 * (32 * 64 + 5 * 64 * 64) + 64 * 10
    assert summary.multiply_adds == by_hand


def test_every_trainable_weight_is_counted_once_in_any_variant():
    for values in ({"num_layers": 20, "resnet_version": 2}, {"num_layers": 11, "block": "bottleneck"}):
        model = build_model(ModelConfig(**values), num_classes=10, image_shape=(32, 32, 3))
        assert summarize(model).parameters == sum(weight.numpy().size for weight in model.trainable_weights)


def test_the_table_holds_the_totals():
    summary = summary_of(num_layers=8)
    html = summary._repr_html_()
    assert f"{summary.parameters:,}" in html
    assert f"{summary.parameters:,}" in str(summary)
    assert html.count("<tr>") == 1 + len(summary.stages) + 1
