"""The networks at the size published for ImageNet: counts, and outputs of other implementations.

tests/training/test_steps.py trains them.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.config.architectures import parse_model_name
from labkit.config.known_models import KNOWN_MODELS
from labkit.errors import InputError
from labkit.models.freezing import stages
from labkit.models.initial_weights import weight_arrays, weights_by_name
from labkit.models.keras_application import own_weights
from labkit.models.registry import build_model
from labkit.models.variants import check_image_sizes
from labkit.startup import tf_compat
from tests.models.keras_weights import load_weights

KNOWN = {known.name: known for known in KNOWN_MODELS}
# Trainable weights in torchvision (SE-ResNet: PyTorchCV), and billions of multiply-adds: He et al. (2015),
# table 1; Hu et al. (2017), table 2; VGG: torchvision.
PUBLISHED = {
    "imagenet_resnet18": (11_689_512, 1.8),
    "imagenet_resnet34": (21_797_672, 3.6),
    "imagenet_resnet50": (25_557_032, 3.8),
    "imagenet_resnet50-v1.5": (25_557_032, 4.09),
    "imagenet_resnet101": (44_549_160, 7.6),
    "imagenet_resnet152": (60_192_808, 11.3),
    "imagenet_se_resnet50": (28_088_024, 3.87),
    "imagenet_vgg16": (138_357_544, 15.47),
    "imagenet_vgg19": (143_667_240, 19.63),
}
# torchvision's figures. Its bottlenecks halve the image one convolution later, so in each of three stages the
# first convolution, of 2 w channels and w filters, works at four times as many positions.
TORCHVISION = {"imagenet_resnet50": 4.09, "imagenet_resnet101": 7.80, "imagenet_resnet152": 11.51}
ONE_CONVOLUTION_LATER = sum(2 * w * w * 3 * side**2 for w, side in ((128, 28), (256, 14), (512, 7)))


def config_of(name: str, **fields) -> ModelConfig:
    return ModelConfig(**parse_model_name(name), **fields)


def build(name: str, size=(64, 64, 3), num_classes: int = 7, **fields) -> keras.Model:
    return build_model(config_of(name, **fields), num_classes=num_classes, image_shape=size)


def relative_error(found, expected) -> float:
    return float(np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_equal_the_published_ones(name):
    """tests/commands/test_models.py holds what is kept against the networks."""
    parameters, billions = PUBLISHED[name]
    assert KNOWN[name].parameters == parameters
    counted = KNOWN[name].multiply_adds
    assert counted / 1e9 == pytest.approx(billions, abs=0.07)  # the papers cut digits: 3.66 is 3.6
    if name in TORCHVISION:
        assert (counted + ONE_CONVOLUTION_LATER) / 1e9 == pytest.approx(TORCHVISION[name], abs=0.006)


# ---- keras.applications --------------------------------------------------------------------------------


def keras_network(application: str, size: int) -> keras.Model:
    """Return Keras's network with random weights and statistics, so that each of them has an effect."""
    make = getattr(keras.applications, application)
    network = make(weights=None, input_shape=(size, size, 3), classes=7, classifier_activation=None)
    random = np.random.default_rng(1)
    for weight in network.weights:
        if weight.name in ("gamma", "moving_variance"):
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
        elif weight.name in ("beta", "bias", "moving_mean"):
            weight.assign(random.uniform(-0.3, 0.3, weight.shape))
    return network


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "application", "fields"),
    [
        ("imagenet_resnet50", "ResNet50", {}),
        ("imagenet_resnet50", "ResNet50", {"batch_norm_epsilon": 1e-3}),
        ("imagenet_vgg16", "VGG16", {}),
    ],
    ids=str,
)
def test_logits_equal_those_of_keras_applications(name, application, fields):
    theirs = keras_network(application, 64)
    model = build(name, **fields)
    arrays = own_weights(theirs, config_of(name, **fields).batch_norm_epsilon)
    head = theirs.get_layer("predictions")
    arrays |= {"logits/kernel": head.kernel.numpy(), "logits/bias": head.bias.numpy()}
    own = weights_by_name(model)
    assert own.keys() == arrays.keys()
    for weight_name, weight in own.items():
        weight.assign(arrays[weight_name])

    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.float32)
    mean, std = np.array([123.68, 116.779, 103.939]), 255 * np.array([0.229, 0.224, 0.225])
    standardized = ((pixels - mean) / std).astype(np.float32)
    prepared = keras.applications.imagenet_utils.preprocess_input(pixels.copy(), mode="caffe")
    expected = np.asarray(theirs(prepared))
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()
    assert relative_error(model(standardized), expected) < 1e-4


# ---- the papers' formulas in TensorFlow's operations ------------------------------------------------------


BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def plain_resnet(weights: dict[str, np.ndarray], images, depth: int, *, squeeze: bool) -> np.ndarray:
    """A ResNet with the weights of ours and Caffe's padding."""
    kernels = 3 if depth >= 50 else 2  # in a block

    def conv(name: str, x, stride: int):
        kernel = weights[f"{name}/kernel"]
        side = [kernel.shape[0] // 2] * 2
        return tf.nn.conv2d(x, kernel, stride, [[0, 0], side, side, [0, 0]])

    def norm(name: str, x):
        values = (weights[f"{name}/{kind}"] for kind in ("moving_mean", "moving_variance", "beta", "gamma"))
        return tf.nn.batch_normalization(x, *values, variance_epsilon=1e-5)

    def dense(name: str, x):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    x = tf.nn.relu(norm("stem_norm1", conv("stem_conv1", images, 2)))
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=-np.inf)
    x = tf.nn.max_pool2d(x, 3, 2, "VALID")
    for stage, blocks in enumerate(BLOCKS[depth], start=1):
        for block in range(1, blocks + 1):
            scope = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            bridged = block == 1 and (stage > 1 or kernels == 3)
            shortcut = norm(f"{scope}_norm1", conv(f"{scope}_conv1", x, stride)) if bridged else x
            for index in range(kernels):
                x = tf.nn.relu(x) if index else x
                number = index + 1 + bridged
                x = conv(f"{scope}_conv{number}", x, 1 if index else stride)
                x = norm(f"{scope}_norm{number}", x)
            if squeeze:
                hidden = tf.nn.relu(dense(f"{scope}_dense1", tf.reduce_mean(x, (1, 2))))
                x *= tf.sigmoid(dense(f"{scope}_dense2", hidden))[:, None, None, :]
            x = tf.nn.relu(x + shortcut)
    return dense("logits", tf.reduce_mean(x, (1, 2))).numpy()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "depth", "size"),
    [
        ("imagenet_resnet18", 18, (45, 31, 3)),
        ("imagenet_resnet34", 34, (64, 64, 3)),
        ("imagenet_se_resnet50", 50, (64, 64, 3)),
    ],
    ids=str,
)
def test_logits_equal_those_of_the_papers_formulas(name, depth, size):
    # In float64: rounding in float32 grows to 4e-4 in the deepest of them.
    model = load_weights(build(name, size, precision="float64"))
    images = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    expected = plain_resnet(weight_arrays(model), images.astype(float), depth, squeeze="_se_" in name)
    assert np.abs(expected[0] - expected[1]).max() > 1e-2 * np.abs(expected).max()
    assert relative_error(model(images), expected) < 1e-9


# ---- use ---------------------------------------------------------------------------------------------------


def without_values(name: str) -> keras.Model:
    """Return a network whose weights have shapes only, which takes no time."""
    with tf_compat.without_values():
        return build(name)


def test_stages_are_those_of_the_paper():
    assert list(stages(without_values("imagenet_resnet18"))) == [
        "stem",
        *(f"stage{n}" for n in range(1, 5)),
        "logits",
    ]
    assert list(stages(without_values("imagenet_vgg11"))) == [*(f"stage{n}" for n in range(1, 7)), "logits"]


def test_a_vgg_network_takes_images_of_one_size_only():
    with pytest.raises(InputError, match="images of 32 × 32 pixels, which imagenet_vgg11 can't take"):
        check_image_sizes([(32, 0.5)], without_values("imagenet_vgg11"))
    check_image_sizes([(32, 0.5)], without_values("imagenet_resnet18"))
