"""Networks of keras.applications with labkit's layers; tests of the weights compare them with Keras's."""

import importlib

import keras
import numpy as np
import pytest

from labkit.config import ModelConfig
from labkit.config.architectures import APPLICATIONS, smallest_side
from labkit.errors import InputError
from labkit.models.freezing import stages
from labkit.models.initial_weights import weights_by_name
from labkit.models.keras_application import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    application_weights,
    bare_application,
    stage_names,
)
from labkit.models.layers import BatchNormalization, Dropout
from labkit.models.registry import build_model
from labkit.startup.tf_compat import without_values

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


@pytest.mark.long
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
        pytest.param({"precision": "float64"}, 1e-4, marks=pytest.mark.long),
        pytest.param({"precision": "mixed_bfloat16"}, 0.3, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_layouts_and_precisions_give_the_same_logits(plain, fields, tolerance):
    model = build(**fields)
    model.set_weights(plain.get_weights())
    expected = plain(IMAGES).numpy()
    assert np.abs(model(IMAGES).numpy() - expected).max() < tolerance * np.abs(expected).max()


ONE_OF_EACH = ["MobileNet", "MobileNetV3Small"]
# ResNet101V2, ResNet152V2, DenseNet169 and DenseNet201 have the same layers more often.
DEEPER = ["MobileNetV2", "ResNet50V2", "DenseNet121", "MobileNetV3Large", "NASNetMobile"]
DEEPER += ["EfficientNetB0", "EfficientNetV2B0", "EfficientNetV2S"]
DEEPER += ["ConvNeXtTiny", "Xception", "InceptionV3", "InceptionResNetV2"]


@pytest.mark.parametrize(
    "application", [*ONE_OF_EACH, *(pytest.param(name, marks=pytest.mark.long) for name in DEEPER)]
)
def test_features_are_those_of_keras_with_the_same_weights(application):
    side = smallest_side(application) + 9  # an odd side, which Keras pads otherwise
    keras.utils.set_random_seed(0)  # rounding differs with the kernels: repeatably so
    theirs, ours = (
        bare_application(application, (side, side, 3)),
        build(shape=(side, side, 3), application=application),
    )
    random, mean, std = np.random.default_rng(0), np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
    for layer in theirs.layers:
        for weight in layer.weights:
            if len(weight.shape) == 1:
                weight.assign(random.uniform(0.9, 1.1, weight.shape))
        if isinstance(layer, keras.layers.Normalization) and layer.weights:  # which the file of weights has
            layer.set_weights([mean, std, np.array(0)])
            layer.finalize_state()
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    images = random.normal(size=(8, side, side, 3)) + random.normal(scale=2.0, size=(8, 1, 1, 3))
    prepare = importlib.import_module(getattr(keras.applications, application).__module__).preprocess_input
    prepared = prepare((255 * (images * std + mean)).astype(np.float32))
    theirs(prepared, training=True)  # keeps the statistics of these images: the features depend on them
    arrays, own = application_weights(application, theirs), weights_by_name(ours)
    for name, array in arrays.items():
        own.pop(name).assign(array)
    assert own.keys() == {"logits/kernel", "logits/bias"}
    expected = theirs(prepared).numpy()
    features = keras.Model(ours.inputs, ours.get_layer("logits").input)(images.astype(np.float32)).numpy()
    tolerance = 1e-4 * np.abs(expected).max()
    assert np.ptp(expected, axis=0).max() > 50 * tolerance
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=tolerance)


@pytest.mark.long
@pytest.mark.parametrize("application", APPLICATIONS)
def test_every_network_of_keras_can_be_built_at_its_smallest_size(application):
    side = smallest_side(application)
    with without_values():
        model = build(shape=(side, side, 3), application=application)
        with pytest.raises(InputError, match=f"{application} needs images of {side}x{side} pixels or more"):
            build(shape=(side - 1, side, 3), application=application)
    assert model.output.shape == (None, 10)
    known = {"stage1", "stage2", "stage3", "stage4", "stage5", "stage6", "logits"}
    assert set(stages(model)) <= known and list(stages(model)) == sorted(stages(model), key="s stage".find)


def test_every_network_of_keras_has_a_name():
    own = {"ResNet50", "ResNet101", "ResNet152", "VGG16", "VGG19"}  # imagenet_resnet and imagenet_vgg
    assert set(APPLICATIONS) == {name for name in dir(keras.applications) if name[0].isupper()} - own


def test_averages_over_the_image_are_in_the_stage_that_they_weigh():
    names = stage_names(bare_application("MobileNetV3Small", SHAPE))
    assert names["expanded_conv_squeeze_excite_conv"] == "stage2_expanded_conv_squeeze_excite_conv"


@pytest.mark.long
def test_dropped_residuals_follow_from_the_seed_and_the_step():
    with without_values():
        model = build(application="EfficientNetB0")
    drops = [layer for layer in model.layers if layer.name.endswith("_drop")]
    assert len(drops) == 9 and len({layer.seed for layer in drops}) == 9
    assert {(type(layer), layer.noise_shape) for layer in drops} == {(Dropout, (None, 1, 1, 1))}


@pytest.mark.parametrize("shape", [(28, 28, 3), (32, 32, 1)])
def test_unsuitable_images_are_refused_in_one_line(shape):
    with pytest.raises(
        InputError, match="MobileNetV2 needs images of 32x32 pixels or more and 3 channels"
    ) as refusal:
        build(shape=shape)
    assert "\n" not in str(refusal.value)


def test_the_application_option_is_refused_for_other_architectures():
    with pytest.raises(InputError, match="--application is 'DenseNet121'; allowed with --model resnet"):
        ModelConfig(application="DenseNet121")
