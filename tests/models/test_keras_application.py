"""Networks of keras.applications with labkit's layers; tests of the weights compare them with Keras's."""

import keras
import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.config.architectures import APPLICATIONS
from labkit.errors import InputError
from labkit.models.freezing import stages
from labkit.models.initial_weights import weights_by_name
from labkit.models.keras_application import bare_application, stage_name
from labkit.models.layers import BatchNormalization
from labkit.models.registry import build_model

SHAPE = (32, 32, 3)
IMAGES = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)


def build(seed: int = 0, shape=SHAPE, data_format="channels_last", **fields):
    config = ModelConfig(model="keras_application", **fields)
    return build_model(config, num_classes=10, image_shape=shape, seed=seed, data_format=data_format)


@pytest.fixture(scope="module")
def plain():
    """Return MobileNetV2; tests must not change it."""
    return build()


def test_layers_are_named_by_stage_and_use_labkits_normalization(plain):
    found = stages(plain)
    assert list(found) == ["stage1", "stage2", "stage3", "stage4", "stage5", "logits"]
    assert "stage1_Conv1" in [layer.name for layer in found["stage1"]]
    norms = [layer for layer in plain.layers if "batchnorm" in type(layer).__name__.lower()]
    assert len(norms) == 52 and all(isinstance(layer, BatchNormalization) for layer in norms)
    # The epsilon is Keras's, because the published weights were trained with it; the decay is labkit's.
    assert {(layer.epsilon, layer.decay) for layer in norms} == {(1e-3, ModelConfig().norm_decay)}


def test_the_seed_decides_the_weights(plain):
    same, other = build(), build(seed=1)
    for mine, again, different in zip(
        plain.trainable_weights, same.trainable_weights, other.trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(mine, again)
        assert mine.name not in ("kernel", "depthwise_kernel") or np.any(mine.numpy() != different.numpy())


@pytest.mark.parametrize(
    ("fields", "tolerance"),
    [
        ({"data_format": "channels_first"}, 1e-4),
        ({"precision": "float64"}, 1e-4),
        ({"precision": "mixed_bfloat16"}, 0.3),
    ],
    ids=str,
)
def test_layouts_and_precisions_give_the_same_logits(plain, fields, tolerance):
    model = build(**fields)
    model.set_weights(plain.get_weights())
    expected = plain(IMAGES).numpy()
    assert np.abs(model(IMAGES).numpy() - expected).max() < tolerance * np.abs(expected).max()


OTHERS = [name for name in APPLICATIONS if name != "MobileNet"]


@pytest.mark.parametrize(
    "application", ["MobileNet", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_features_are_those_of_keras_with_the_same_weights(application):
    theirs, ours = bare_application(application, SHAPE), build(application=application)
    random, own = np.random.default_rng(0), weights_by_name(ours)
    for layer in theirs.layers:
        for weight in layer.weights:
            if len(weight.shape) == 1:
                weight.assign(random.uniform(0.5, 1.5, weight.shape))
            own.pop(f"{stage_name(layer, SHAPE)}/{weight.name}").assign(weight)
    assert own.keys() == {"logits/kernel", "logits/bias"}
    prepared = IMAGES
    if not application.startswith("DenseNet"):  # pixels from -1 to 1, with ImageNet's mean and deviation
        prepared = IMAGES * 2 * np.array([0.229, 0.224, 0.225]) + 2 * np.array([0.485, 0.456, 0.406]) - 1
    expected = theirs(prepared.astype(np.float32)).numpy().mean(axis=(1, 2))
    found = keras.Model(ours.inputs, ours.get_layer("head_global_average1").output)(IMAGES).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(28, 28, 3), (32, 32, 1)])
def test_unsuitable_images_are_refused_in_one_line(shape):
    with pytest.raises(InputError, match="32x32 pixels or more and 3 channels") as refusal:
        build(shape=shape)
    assert "\n" not in str(refusal.value)


def test_the_application_option_is_refused_for_other_architectures():
    with pytest.raises(InputError, match="--application is 'DenseNet121'; allowed with --model resnet"):
        ModelConfig(application="DenseNet121")
