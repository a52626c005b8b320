"""Another project's Keras settings don't reach labkit's networks."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import labkit
from labkit.analysis.network import Classifier, features_model
from labkit.config import ModelConfig
from labkit.data.manifest import Manifest
from labkit.data.network_input import NetworkInput
from labkit.export.standard import standard_model
from labkit.models.keras_application import own_weights, published_network
from labkit.models.registry import build_model
from labkit.models.variants import with_image_size, with_layer_outputs
from labkit.training.losses import SOFTMAX

SIDE = 32
SMALL = {
    "resnet": {"num_layers": 8, "dropout_rate": 0.5},
    "se_resnet": {"num_layers": 8},
    "wide_resnet": {"num_layers": 10, "width_factor": 1},
    "vgg": {"num_layers": 11},
    "fast": {"width_factor": 0.25},
    "keras_application": {"application": "MobileNetV2"},
}


@pytest.fixture
def foreign() -> Iterator[Callable[[], None]]:
    """A function that sets Keras as another project would, for the rest of the test."""
    config = keras.config
    before = config.floatx(), config.image_data_format(), config.epsilon(), config.dtype_policy()

    def put(floatx: str, data_format: str, epsilon: float, policy: Any) -> None:
        config.set_floatx(floatx)
        config.set_image_data_format(data_format)
        config.set_epsilon(epsilon)
        config.set_dtype_policy(policy)

    yield lambda: put("float16", "channels_first", 0.1, "mixed_bfloat16")
    put(*before)


def built(config: ModelConfig, data_format: str) -> tuple[list[Any], list[Any]]:
    """Return the configurations of a network's layers, and the outputs of models made from it."""
    model = build_model(config, num_classes=5, image_shape=(SIDE, SIDE, 3), data_format=data_format, seed=1)
    images = np.random.default_rng(0).normal(size=(1, SIDE, SIDE, 3)).astype(np.float32)
    models = [with_layer_outputs(model), features_model(model)]
    if config.model == "resnet":
        models.append(with_image_size(model, SIDE))
    outputs = [output for one in models for output in keras.tree.flatten(one(images, training=False))]
    return [layer.get_config() for layer in model.layers], [np.asarray(output) for output in outputs]


# What the networks of ARCHITECTURES that aren't here are made of, is in these.
NETWORKS = ("resnet", "se_resnet", "wide_resnet", "vgg", "tutorial_cnn", "fast", "keras_application")
NETWORKS += ("vit", "convnext")
LARGE = ("vgg", "keras_application", "vit", "convnext")


@pytest.mark.parametrize(
    ("name", "precision", "data_format"),
    [
        *(
            pytest.param(name, "float32", "channels_last", marks=pytest.mark.long if name in LARGE else ())
            for name in NETWORKS
        ),
        ("resnet", "mixed_bfloat16", "channels_last"),
        ("resnet", "float64", "channels_last"),
    ],
)
def test_networks_are_the_same_with_other_settings(name, precision, data_format, foreign) -> None:
    config = ModelConfig(model=name, precision=precision, **SMALL.get(name, {}))
    plain, expected = built(config, data_format)
    foreign()
    other, found = built(config, data_format)
    for ours, theirs in zip(plain, other, strict=True):
        ours["name"] = theirs["name"] = ""  # Keras counts the layers of the process
        assert ours == theirs
    for one, another in zip(expected, found, strict=True):
        assert one.dtype == another.dtype
        np.testing.assert_array_equal(one, another)
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert (keras.config.floatx(), keras.config.image_data_format()) == ("float16", "channels_first")


@pytest.mark.parametrize("per_image", [False, True])
def test_an_exported_network_predicts_the_same(per_image, foreign, shapes: Manifest, tmp_path):
    config = ModelConfig(num_layers=8)
    taken = NetworkInput(crop_size=24, standardization="per_image" if per_image else "dataset")
    trained = build_model(config, num_classes=10, image_shape=(24, 24, 3), seed=1)
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.float32)
    plain = standard_model(config, Classifier(trained, shapes, SOFTMAX, 0, taken))
    expected = np.asarray(plain(images))
    foreign()
    made = standard_model(config, Classifier(trained, shapes, SOFTMAX, 0, taken))
    made.save(tmp_path / "made.keras")
    for model in (plain, made, keras.saving.load_model(tmp_path / "made.keras")):
        found = np.asarray(model(images))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_published_weights_are_read_the_same(foreign) -> None:
    def arrays() -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(0)
        return own_weights(published_network("VGG16", (SIDE, SIDE, 3)), 1e-5)

    plain = arrays()
    foreign()
    found = arrays()
    assert {name: (array.shape, array.dtype) for name, array in plain.items()} == {
        name: (array.shape, array.dtype) for name, array in found.items()
    }
    np.testing.assert_array_equal(*(weights["stage1_conv1/kernel"] for weights in (plain, found)))


def test_every_layer_in_the_code_states_its_dtype() -> None:
    silent = []
    for path in Path(labkit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or "dtype" in {keyword.arg for keyword in node.keywords}:
                continue
            if re.fullmatch(r"keras\.(Input|layers\.\w+)", ast.unparse(node.func)):
                silent.append(f"{path.name}:{node.lineno}")
    assert silent == []
