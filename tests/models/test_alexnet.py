"""AlexNet, for small and for larger images: outputs of another implementation, counts, weights of PyTorch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.known_models import KNOWN_MODELS
from labkit.errors import InputError
from labkit.models.initial_weights import weight_arrays
from labkit.models.registry import build_model
from labkit.startup.tf_compat import without_values
from tests.models.keras_weights import load_weights
from tests.models.test_taken_weights import IMAGES, save, start

CONVOLUTIONS = ("stage1_conv1", "stage2_conv1", "stage3_conv1", "stage3_conv2", "stage3_conv3")


def build(name: str, size: tuple[int, int, int], **fields) -> keras.Model:
    return build_model(ModelConfig(model=name, **fields), num_classes=10, image_shape=size)


def plain_alexnet(weights: dict[str, np.ndarray], images) -> np.ndarray:
    """torchvision's AlexNet, or without dense weights pytorch-classification's for 32x32 pixels."""
    small = "stage4_dense1/kernel" not in weights
    x = images
    for number, name in enumerate(CONVOLUTIONS):
        padding = [((5 if small else 2), 2, 1, 1, 1)[number]] * 2
        around = [[0, 0], padding, padding, [0, 0]]
        x = tf.nn.conv2d(x, weights[f"{name}/kernel"], 1 if number else 4, around)
        x = tf.nn.relu(x + weights[f"{name}/bias"])
        if number in (0, 1, 4):
            x = tf.nn.max_pool2d(x, 2 if small else 3, 2, "VALID")
    x = tf.reshape(x, [len(images), -1])
    for name in ("logits",) if small else ("stage4_dense1", "stage4_dense2", "logits"):
        x = (x if name.endswith("1") or small else tf.nn.relu(x)) @ weights[f"{name}/kernel"]
        x += weights[f"{name}/bias"]
    return x.numpy()


@pytest.mark.parametrize(
    ("name", "size"),
    [("alexnet", (32, 32, 3)), pytest.param("imagenet_alexnet", (95, 64, 3), marks=pytest.mark.long)],
)
def test_logits_are_those_of_another_implementation(name, size):
    model = load_weights(build(name, size, precision="float64"))
    images = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    expected = plain_alexnet(weight_arrays(model), images.astype(float))
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()
    np.testing.assert_allclose(model(images), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_counts_are_those_of_pytorch_classification_and_torchvision():
    counts = {known.name: (known.parameters, known.multiply_adds / 1e6) for known in KNOWN_MODELS}
    assert counts["alexnet"][0] == pytest.approx(2.47e6, abs=0.005e6)
    assert counts["imagenet_alexnet"] == (61_100_840, pytest.approx(714.19, abs=0.005))


def test_images_that_are_too_small_for_the_published_network_are_refused():
    with without_values():
        assert build("imagenet_alexnet", (63, 63, 3)).output.shape == (None, 10)
        with pytest.raises(InputError, match="imagenet_alexnet needs images of 63x63 pixels or more, not 62"):
            build("imagenet_alexnet", (62, 64, 3))


def test_a_state_dict_of_pytorch_is_taken_by_order(tmp_path):
    model = build("alexnet", (32, 32, 3))
    theirs = load_weights(build("alexnet", (32, 32, 3)))
    arrays = weight_arrays(theirs)
    named = {}
    for name, number in zip(CONVOLUTIONS, (0, 3, 6, 8, 10), strict=True):
        kernel = arrays[f"{name}/kernel"].transpose(3, 2, 0, 1)
        named |= {f"features.{number}.weight": kernel, f"features.{number}.bias": arrays[f"{name}/bias"]}
    transfer = start(save(tmp_path / "theirs.safetensors", named), model, model="alexnet")
    assert transfer.missing == ("logits/kernel", "logits/bias") and not transfer.unused
    model.get_layer("logits").set_weights(theirs.get_layer("logits").get_weights())
    np.testing.assert_allclose(model(IMAGES), theirs(IMAGES), rtol=1e-4, atol=1e-4)
