"""Another project's Keras settings don't reach labkit's networks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

import labkit
from labkit.analysis.saliency import features_model
from labkit.config import ModelConfig
from labkit.data.manifest import Manifest
from labkit.export.standard import standard_model
from labkit.models.layer_outputs import with_layer_outputs
from labkit.models.registry import BUILDERS, build_model
from labkit.models.resizing import with_image_size
from labkit.transfer.imagenet import own_weights, published_network

SIDE = 32
SMALL = {
    "resnet": {"num_layers": 8, "dropout_rate": 0.5},
    "se_resnet": {"num_layers": 8},
    "wide_resnet": {"num_layers": 10, "width_factor": 1},
    "vgg": {"num_layers": 11},
    "fast": {"width_factor": 0.25},
    "imagenet_resnet": {"num_layers": 18},
    "imagenet_se_resnet": {"num_layers": 18},
    "imagenet_vgg": {"num_layers": 11},
    "keras_application": {"application": "MobileNetV2"},
}


@pytest.fixture
def foreign() -> Iterator[list[object]]:
    """Keras settings of another project, in this process."""
    config = keras.config
    before = config.floatx(), config.image_data_format(), config.epsilon(), config.dtype_policy()

    def put(floatx: str, data_format: str, epsilon: float, policy: object) -> None:
        config.set_floatx(floatx)
        config.set_image_data_format(data_format)
        config.set_epsilon(epsilon)
        config.set_dtype_policy(policy)

    def switch(on: bool) -> None:
        put(*(("float16", "channels_first", 0.1, "mixed_bfloat16") if on else before))

    yield switch  # type: ignore[misc]
    put(*before)


def built(config: ModelConfig, data_format: str) -> tuple[object, np.ndarray]:
    """Return the configuration of a network and of models made from it, and their outputs."""
    model = build_model(config, num_classes=5, image_shape=(SIDE, SIDE, 3), data_format=data_format, seed=1)
    images = np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)).astype(np.float32)
    models = [model, with_layer_outputs(model), features_model(model)]
    if config.model not in ("tutorial_cnn", "imagenet_vgg"):  # whose dense layers take one size
        models.append(with_image_size(model, SIDE))
    outputs = [
        np.asarray(value, np.float64)
        for one in models
        for value in keras.tree.flatten(one(images, training=False))
    ]
    return [layer.get_config() for layer in model.layers], outputs


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_networks_are_the_same_with_other_settings(name, precision, foreign) -> None:
    values = SMALL.get(name, {})
    config = ModelConfig(model=name, precision=precision, **values)
    data_format = "channels_last"
    plain, expected = built(config, data_format)
    foreign(True)
    other, found = built(config, data_format)
    for ours, theirs in zip(plain, other, strict=True):
        ours["name"] = theirs["name"] = ""  # Keras counts the layers of the process
        assert ours == theirs
    for one, another in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, another)
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    assert (keras.config.floatx(), keras.config.image_data_format()) == ("float16", "channels_first")


@pytest.mark.parametrize("per_image", [False, True])
def test_an_exported_network_is_the_same_and_predicts_the_same(
    per_image, foreign, shapes: Manifest, tmp_path
):
    from labkit.data.network_input.settings import NetworkInput

    config = ModelConfig(num_layers=8)
    taken = NetworkInput(crop_size=24, standardization="per_image" if per_image else "data_set")
    trained = build_model(config, num_classes=10, image_shape=(24, 24, 3), seed=1)
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.float32)
    plain = standard_model(config, trained, shapes, network_input=taken)
    expected = np.asarray(plain(images))
    foreign(True)
    made = standard_model(config, trained, shapes, network_input=taken)
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
    foreign(True)
    found = arrays()
    assert {name: (array.shape, array.dtype) for name, array in plain.items()} == {
        name: (array.shape, array.dtype) for name, array in found.items()
    }
    np.testing.assert_array_equal(*(weights["stage1_conv1/kernel"] for weights in (plain, found)))


def test_every_layer_in_the_code_states_its_dtype() -> None:
    silent = []
    for path in Path(labkit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            makes = called == "keras.Input" or called.startswith("keras.layers.")
            if makes and "dtype" not in {keyword.arg for keyword in node.keywords}:
                silent.append(f"{path.name}:{node.lineno}: {called}")
    assert silent == []
