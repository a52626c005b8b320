"""What holds for every backbone: equality with PyTorch, layouts, precisions, seeds, files, image sizes."""

import functools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import ARCHITECTURES, model_name
from labkit.errors import InputError
from labkit.models.registry import build_model
from tests.models.keras_weights import load_weights
from tests.models.reference_weights import batch

IMAGES, _ = batch(0, 2)
REFERENCE = Path(__file__).parent / "reference" / "logits.npz"

# The smallest network of each kind; PyTorch's outputs are kept for these.
WITH_REFERENCE: dict[str, dict] = {
    "resnet8": {"num_layers": 8},
    "resnet8-v2": {"num_layers": 8, "resnet_version": 2},
    "resnet11-bottleneck": {"num_layers": 11, "block": "bottleneck"},
    "resnet11-v2-bottleneck": {"num_layers": 11, "block": "bottleneck", "resnet_version": 2},
    "se_resnet8": {"model": "se_resnet", "num_layers": 8},
    "se_resnet11-v2-bottleneck": {
        "model": "se_resnet", "num_layers": 11, "block": "bottleneck", "resnet_version": 2,
    },
    "wide_resnet10_2": {"model": "wide_resnet", "num_layers": 10, "width_factor": 2.0},
    "vgg11": {"model": "vgg", "num_layers": 11},
    "tutorial_cnn": {"model": "tutorial_cnn"},
    "fast_0.25": {"model": "fast", "width_factor": 0.25, "activation": "gelu"},
    "fast_0.5": {"model": "fast", "width_factor": 0.5, "activation": "silu"},
    "fast_residual_0.25": {"model": "fast_residual", "width_factor": 0.25, "activation": "gelu"},
    "lenet": {"model": "lenet"},
}  # fmt: skip
# These are compared with other implementations in test_published_size.py.
PUBLISHED_SIZE: dict[str, dict] = {
    "imagenet_resnet18": {"model": "imagenet_resnet", "num_layers": 18},
    "imagenet_se_resnet18": {"model": "imagenet_se_resnet", "num_layers": 18},
    "imagenet_vgg11": {"model": "imagenet_vgg", "num_layers": 11},
}
# And these in test_transformers.py.
TRANSFORMERS: dict[str, dict] = {"vit": {"model": "vit"}, "convnext": {"model": "convnext"}}
# And this one in test_alexnet.py, with imagenet_alexnet, which takes larger images only.
ALEXNET: dict[str, dict] = {"alexnet": {"model": "alexnet"}}
CASES = WITH_REFERENCE | PUBLISHED_SIZE | TRANSFORMERS | ALEXNET
ONE_OF_EACH = ["resnet8", "se_resnet8", "wide_resnet10_2", "vgg11", "tutorial_cnn", "fast_0.25", "lenet"]
ONE_OF_EACH += ["fast_residual_0.25", *PUBLISHED_SIZE, *TRANSFORMERS, *ALEXNET]
# make test has the small ones.
LARGE = PUBLISHED_SIZE | TRANSFORMERS | ALEXNET
EACH = [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in ONE_OF_EACH]


def build(name: str, *, seed: int = 0, data_format: str = "channels_last", size=(32, 32, 3), **fields):
    config = ModelConfig(**CASES[name], **fields)
    return build_model(config, num_classes=10, image_shape=size, seed=seed, data_format=data_format)


@functools.cache
def built(name: str) -> keras.Model:
    """The model with the weights that its PyTorch twin has, to be read only."""
    return load_weights(build(name))


@functools.cache
def logits(name: str) -> np.ndarray:
    return built(name)(IMAGES).numpy()


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max())


def test_every_architecture_has_a_case():
    # These are tested in test_keras_application.py and test_alexnet.py.
    own = ARCHITECTURES.keys() - {"keras_application", "imagenet_alexnet"}
    assert {CASES[name].get("model", "resnet") for name in ONE_OF_EACH} == own
    assert [model_name(ModelConfig(**fields)) for fields in CASES.values()] == list(CASES)


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_logits_equal_those_of_pytorch(name):
    # ``make_reference`` makes the file; tests/models/test_torch_reference.py makes it again.
    expected = np.load(REFERENCE)[name]
    assert logits(name).shape == (2, 10)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3 * np.abs(expected).max()
    assert relative_error(logits(name), expected) < 1e-4


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in CASES]
)
def test_layouts_give_the_same_logits(name):
    first = build(name, data_format="channels_first")
    first.set_weights(built(name).get_weights())
    assert relative_error(first(IMAGES), logits(name)) < 1e-4


@pytest.mark.parametrize("name", EACH)
def test_logits_stay_float32_in_mixed_precision(name):
    model = build(name, precision="mixed_bfloat16")
    model.set_weights(built(name).get_weights())
    found = model(IMAGES)
    assert found.dtype == "float32"
    assert {str(weight.dtype) for weight in model.weights} == {"float32"}
    # bfloat16 has 8 significant bits, so each layer adds a rounding error of up to 0.4 %.
    assert 1e-5 < relative_error(found, logits(name)) < 0.1


@pytest.mark.parametrize("name", EACH)
def test_float64_gives_the_same_logits_and_dtype_everywhere(name):
    model = build(name, precision="float64")
    model.set_weights(built(name).get_weights())
    assert model(IMAGES).dtype == "float64"
    assert {str(weight.dtype) for weight in model.weights} == {"float64"}
    # In training, the last stage of these has one position an image: normalizing two values gives signs.
    for training in (False,) if name in PUBLISHED_SIZE else (False, True):
        expected = built(name)(IMAGES, training=training)
        assert relative_error(model(IMAGES, training=training), np.asarray(expected)) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_the_seed_decides_the_initial_weights(name):
    # The frozen kernel of whitening is made from the images; those of 0 and 1 begin as the identity, those of
    # one number scale channels.
    first, same, other = (build(name, seed=seed) for seed in (0, 0, 1))
    kernels = 0
    weights = (model.trainable_weights for model in (first, same, other))
    for a, b, c in zip(*weights, strict=True):
        if a.name == "kernel":
            kernels += 1
            np.testing.assert_array_equal(a, b)
            assert (
                np.isin(a, (0, 1)).all() or np.ptp(a) == 0 or np.abs(np.asarray(a) - np.asarray(c)).max() > 0
            )
    assert kernels >= 5


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_a_keras_file_contains_the_whole_model(name, tmp_path):
    built(name).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IMAGES), logits(name))


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("size", [(28, 28, 1), (45, 31, 4)], ids=str)
def test_other_image_sizes_and_channels_work(name, size):
    model = build(name, size=size)
    found = model(np.ones((2, *size), np.float32), training=True).numpy()
    assert found.shape == (2, 10)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", EACH)
def test_a_checkpoint_of_one_layout_loads_into_the_other(name, tmp_path):
    saved = tf.train.Checkpoint(model=built(name)).save(str(tmp_path / "weights"))
    other = build(name, seed=9, data_format="channels_first")
    tf.train.Checkpoint(model=other).restore(saved).assert_existing_objects_matched().assert_consumed()
    np.testing.assert_allclose(other(IMAGES), logits(name), rtol=1e-3, atol=1e-3)


def test_images_that_are_too_small_are_refused_in_one_line():
    assert build("lenet", size=(13, 13, 1)).output.shape == (None, 10)
    with pytest.raises(InputError, match="--model lenet needs images of 13x13 pixels or more, not 12x32"):
        build("lenet", size=(12, 32, 1))
