"""The vision transformer and ConvNeXt against other implementations with the same weights."""

import math

import keras
import numpy as np
import pytest

from labkit.config import Config
from labkit.models import patches
from labkit.models.attention import positions
from labkit.models.freezing import stages
from labkit.models.layer_factory import LayerFactory
from labkit.models.registry import build_model
from labkit.models.variants import with_image_size
from labkit.optim.optimizer import _decaying
from tests.models.keras_weights import load_weights
from tests.models.test_registry import relative_error


def built(name: str) -> keras.Model:
    config = Config.from_flat({"model": name}).model
    return load_weights(build_model(config, num_classes=10, image_shape=(32, 32, 3)))


def pixels(size: int, number: int = 2) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(number, size, size, 3)).astype(np.float32)


# ---- ViT: the papers' formulas in NumPy ------------------------------------------------------------------


def normalized(x, weights, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def plain_vit(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    number, size = images.shape[:2]
    side = size // 4
    patches = images.reshape(number, side, 4, side, 4, 3).transpose(0, 1, 3, 2, 4, 5)
    kernel = weights["stem_conv1/kernel"].reshape(48, 192)
    x = patches.reshape(number, side * side, 48) @ kernel + weights["stem_conv1/bias"]
    x = x + positions(side, side, 192).reshape(side * side, 192)
    for block in range(12):
        at = f"stage{block // 3 + 1}_block{block % 3 + 1}"
        queries, keys, values = np.split(
            dense(normalized(x, weights, f"{at}_norm1"), weights, f"{at}_dense1"), 3, axis=-1
        )
        heads = []
        for head in range(3):
            part = slice(64 * head, 64 * head + 64)
            scores = np.exp(queries[..., part] @ keys[..., part].swapaxes(1, 2) / 8)
            heads.append(scores / scores.sum(-1, keepdims=True) @ values[..., part])
        x = x + dense(np.concatenate(heads, axis=-1), weights, f"{at}_dense2")
        hidden = dense(normalized(x, weights, f"{at}_norm2"), weights, f"{at}_dense3")
        hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
        x = x + dense(hidden, weights, f"{at}_dense4")
    return dense(normalized(x, weights, "stage4_norm1").mean(axis=1), weights, "logits")


@pytest.mark.long
def test_the_vision_transformer_is_that_of_the_papers():
    model = built("vit")
    weights = {weight.path: np.asarray(weight, np.float64) for weight in model.weights}
    expected = plain_vit(weights, pixels(32).astype(np.float64))
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()
    assert relative_error(model(pixels(32)), expected) < 1e-4


def test_positions_are_those_of_big_vision():
    y, x = np.mgrid[:3, :5]
    omega = 1.0 / (10_000.0 ** (np.arange(48) / 47))
    y, x = (np.einsum("m,d->md", places.flatten(), omega) for places in (y, x))
    expected = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    np.testing.assert_allclose(positions(3, 5, 192).reshape(15, 192), expected, atol=1e-6)


# ---- ConvNeXt: keras.applications ------------------------------------------------------------------------


@pytest.mark.long
def test_convnext_is_that_of_keras_applications(monkeypatch):
    theirs = keras.applications.ConvNeXtTiny(
        include_preprocessing=False, weights=None, input_shape=(64, 64, 3), classes=10,
        classifier_activation=None,
    )  # fmt: skip
    monkeypatch.setattr(patches, "DEPTHS", (3, 3, 9, 3))
    monkeypatch.setattr(patches, "WIDTHS", (96, 192, 384, 768))
    images = keras.Input((64, 64, 3))
    logits = patches.convnext(LayerFactory(), images, num_classes=10, patch=4)
    ours = load_weights(keras.Model(images, logits))
    leaves = [
        leaf
        for layer in theirs.layers
        for leaf in (layer.layers if isinstance(layer, keras.Sequential) else [layer])
        if leaf.weights
    ]
    own = [layer for layer in ours.layers if layer.weights]
    assert len(own) == len(leaves)
    for layer, leaf in zip(own, leaves, strict=True):
        assert len(layer.weights) == len(leaf.weights)
        for weight, other in zip(layer.weights, leaf.weights, strict=True):
            other.assign(
                np.reshape(np.asarray(weight), other.shape)
            )  # depthwise: (7, 7, c, 1) and (7, 7, 1, c)
    expected = np.asarray(theirs(pixels(64)))
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()
    assert relative_error(ours(pixels(64)), expected) < 1e-4


# ---- both ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit", "convnext"])
def test_stages_sizes_and_decaying_weights(name):
    model = built(name)
    assert list(stages(model)) == ["stem", "stage1", "stage2", "stage3", "stage4", "logits"]
    assert with_image_size(model, 24)(pixels(24)).shape == (2, 10)
    optimizer = Config.from_flat({"weight_decay_of": "kernels"}).optimizer
    kernels = _decaying(model, optimizer)
    assert {weight.name for weight in kernels} == {"kernel"}
    assert all(len(weight.shape) > 1 for weight in kernels)


def test_biases_and_scales_of_several_axes_are_no_kernels():
    """Of Keras's attention, its biases are [heads, channels of a head]; of a PReLU, one for each feature."""
    images = keras.Input((4, 4, 6))
    x = keras.layers.MultiHeadAttention(2, 3)(images, images)
    x = keras.layers.LayerNormalization(axis=(2, 3))(keras.layers.PReLU()(x))
    model = keras.Model(images, keras.layers.Dense(3)(keras.layers.Flatten()(x)))
    kernels = _decaying(model, Config.from_flat({"weight_decay_of": "kernels"}).optimizer)
    assert [weight.name for weight in kernels] == ["kernel"] * 5
