"""Model summaries, compared with He et al. (2015), table 6 and section 4.2; receptive fields by hand."""

import keras
import pytest

from labkit.analysis.architecture import receptive_field, summarize, training_flops
from labkit.config import ModelConfig
from labkit.models.registry import build_model


def summary_of(**values):
    return summarize(build_model(ModelConfig(**values), num_classes=10, image_shape=(32, 32, 3)))


@pytest.mark.parametrize("num_layers", [8, 20])
def test_resnet_stages_match_the_paper(num_layers):
    summary, n = summary_of(num_layers=num_layers), (num_layers - 2) // 6
    stages = [("32×32", 16, 2 * n + 1), ("16×16", 32, 2 * n), ("8×8", 64, 2 * n), ("logits", 10, 1)]
    assert [(stage.name, stage.channels, stage.layers) for stage in summary.stages] == stages


def test_parameters_and_multiply_adds_of_resnet20_are_those_of_the_paper_and_are_shown():
    summary = summary_of(num_layers=20)
    html = summary._repr_html_()
    assert f"{summary.parameters:,}" in html and f"{summary.parameters:,}" in str(summary)
    assert html.count("<tr>") == 1 + len(summary.stages) + 1
    assert summary.parameters == pytest.approx(0.27e6, rel=0.01)  # table 6
    # 3×3 kernels: 27·16 inputs a pixel in the first layer, then 6 layers at each resolution, two of which
    # have half of the input channels; 64×10 in the last.
    by_hand = 1024 * 9 * (3 * 16 + 6 * 16 * 16) + 256 * 9 * (16 * 32 + 5 * 32 * 32)
    by_hand += 64 * 9 * (32 * 64 + 5 * 64 * 64) + 64 * 10
    assert summary.multiply_adds == by_hand


VARIANTS = (
    {"num_layers": 20, "resnet_version": 2},
    {"num_layers": 11, "block": "bottleneck"},
    {"model": "se_resnet", "num_layers": 8},
    {"model": "tutorial_cnn"},
)


def test_every_trainable_weight_is_counted_once_in_any_variant():
    for values in VARIANTS:
        model = build_model(ModelConfig(**values), num_classes=10, image_shape=(32, 32, 3))
        assert summarize(model).parameters == sum(weight.numpy().size for weight in model.trainable_weights)


def test_a_separable_convolution_counts_both_of_its_kernels():
    images = keras.Input((8, 8, 4))
    model = keras.Model(images, keras.layers.SeparableConv2D(6, 3, padding="same")(images))
    both = (3 * 3 * 4 + 4 * 6) * 8 * 8
    assert (summarize(model).multiply_adds, training_flops(model)) == (both, 2 * both * 2)


def chained(images, frozen=False):
    """Two convolutions with a normalization between them; the first may be frozen."""
    layers = [
        keras.layers.Conv2D(8, 3, padding="same", trainable=not frozen),
        keras.layers.BatchNormalization(trainable=not frozen),
        keras.layers.Conv2D(6, 3, strides=2),
    ]
    for layer in layers:
        images = layer(images)
    return images


class Own(keras.layers.Layer):
    def __init__(self, layers):
        super().__init__()
        self.chain = layers

    def call(self, x):
        for layer in self.chain:
            x = layer(x)
        return x


@pytest.mark.parametrize("form", ["functional", "any size", "sequential", "own"])
def test_layers_inside_of_a_model_or_layer_count_as_they_do_alone(form):
    side = None if form == "any size" else 16
    for frozen in (False, True):
        images, inputs = keras.Input((16, 16, 3)), keras.Input((side, side, 3))
        inner = keras.Model(inputs, chained(inputs, frozen))
        if form == "sequential":
            inner = keras.Sequential(inner.layers)
        elif form == "own":
            inner = Own(inner.layers[1:])
        ends = [keras.layers.GlobalAveragePooling2D()(x) for x in (chained(images, frozen), inner(images))]
        alone, nested = (keras.Model(images, keras.layers.Dense(5)(end)) for end in ends)
        expected, found = summarize(alone), summarize(nested)
        assert (found.multiply_adds, found.parameters) == (expected.multiply_adds, expected.parameters)
        assert [(stage.name, stage.layers) for stage in found.stages] == [("7×7", 2), ("logits", 1)]
        assert training_flops(nested) == training_flops(alone)
        if form in ("any size", "own"):
            assert training_flops(nested, image_size=12) == training_flops(alone, image_size=12)
    with pytest.raises(ValueError, match="convolutions or pools inside"):
        receptive_field(nested)


def test_a_transposed_convolution_uses_its_kernel_at_each_place_of_its_input():
    images = keras.Input((8, 8, 4))
    model = keras.Model(images, keras.layers.Conv2DTranspose(6, 3, strides=2)(images))
    by_hand = 8 * 8 * 3 * 3 * 4 * 6
    assert (summarize(model).multiply_adds, training_flops(model)) == (by_hand, 2 * by_hand * 2)
    assert training_flops(model, image_size=5) == 4 * by_hand * 25 // 64


def test_the_projections_of_attention_are_counted():
    images = keras.Input((4, 4, 8))
    places = keras.layers.Reshape((16, 8))(images)
    model = keras.Model(images, keras.layers.MultiHeadAttention(2, 3)(places, places))
    assert summarize(model).multiply_adds == 16 * 4 * (8 * 2 * 3)  # queries, keys, values, output


def test_squeeze_and_excitation_belongs_to_the_surrounding_stage():
    plain, squeezed = summary_of(num_layers=8), summary_of(model="se_resnet", num_layers=8)
    for before, after, channels in zip(plain.stages, squeezed.stages, (16, 32, 64, 0), strict=True):
        assert (after.name, after.channels) == (before.name, before.channels)
        assert after.layers - before.layers == (2 if channels else 0)
        hidden = channels // 16
        assert after.multiply_adds - before.multiply_adds == 2 * channels * hidden
        assert after.parameters - before.parameters == 2 * channels * hidden + hidden + channels


def test_several_dense_layers_at_the_end_form_one_stage():
    stages = summary_of(model="tutorial_cnn").stages
    expected = [("32×32", 1, 64), ("16×16", 1, 64), ("dense", 3, 10)]
    assert [(stage.name, stage.layers, stage.channels) for stage in stages] == expected
    assert stages[0].multiply_adds == 32 * 32 * 5 * 5 * 3 * 64
    assert stages[2].multiply_adds == 8 * 8 * 64 * 384 + 384 * 192 + 192 * 10


# ---- receptive field -----------------------------------------------------------------------------------


def conv(size, stride=1, **values):
    return keras.layers.Conv2D(2, size, strides=stride, padding="same", **values)


@pytest.mark.parametrize(
    ("layers", "field"),
    [
        ([], (1, 1)),
        ([conv(1), conv(3), conv(3)], (5, 5)),
        ([conv(3, 2), conv(3)], (7, 7)),  # 3 + 2 · 2
        ([conv((3, 5), (1, 2)), conv((5, 3))], (7, 9)),  # 3 + 4 · 1, 5 + 2 · 2
        ([conv(3, dilation_rate=2), conv(3)], (7, 7)),  # 5 + 2
        ([conv(3), keras.layers.MaxPooling2D(2), conv(3)], (8, 8)),  # 3 + 1 + 2 · 2
        ([keras.layers.AveragePooling2D(3, strides=2), conv(3)], (7, 7)),
        ([keras.layers.DepthwiseConv2D(3, strides=2), keras.layers.ReLU(), conv(3)], (7, 7)),
        ([conv(3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)], (3, 3)),
        ([conv(3), keras.layers.Flatten(), keras.layers.Dense(3), keras.layers.ReLU()], (3, 3)),
    ],
)
def test_receptive_field_of_a_chain(layers, field):
    images = x = keras.Input((16, 16, 3))
    for layer in layers:
        x = layer(x)
    assert receptive_field(keras.Model([images], x)) == field


def test_the_widest_path_counts_and_global_averages_do_not():
    images = keras.Input((16, 16, 2))
    narrow, wide = conv(1, 2)(images), conv(3)(conv(3, 2)(images))  # 1; 3 + 2 · 2
    x = keras.layers.Add()([narrow, wide])
    factors = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = keras.ops.pad(keras.layers.Multiply()([x, factors]), [[0, 0], [0, 0], [0, 0], [1, 1]])
    outputs = conv(3)(x)  # + 2 · 2
    assert receptive_field(keras.Model(images, outputs)) == (11, 11)


@pytest.mark.parametrize(
    ("values", "size"),
    [
        # n blocks of two 3x3 convolutions at each resolution; the first convolution of each has the stride.
        ({"num_layers": 20}, 3 + 6 * 2 + (2 + 5 * 4) + (4 + 5 * 8)),
        ({"num_layers": 8, "resnet_version": 2}, 3 + 2 * 2 + (2 + 4) + (4 + 8)),
        # Bottleneck: one 3x3 convolution a block, after the one with the stride.
        ({"num_layers": 11, "block": "bottleneck"}, 3 + 2 + 4 + 8),
        ({"model": "se_resnet", "num_layers": 8}, 25),
        # Stages of one or two convolutions and a pool.
        ({"model": "vgg", "num_layers": 11}, 1 + (2 + 1) + 2 * (2 + 1) + (4 + 8 + 16) * (4 + 1)),
        ({"model": "tutorial_cnn"}, 5 + 2 + 4 * 2 + 2 * 2),
    ],
)
def test_receptive_field_of_the_backbones(values, size):
    for data_format in ("channels_last", "channels_first"):
        model = build_model(
            ModelConfig(**values), num_classes=10, image_shape=(32, 32, 3), data_format=data_format
        )
        assert receptive_field(model) == (size, size)
