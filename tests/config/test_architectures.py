"""Names of models, and back."""

import pytest

from labkit.config import Config, ModelConfig
from labkit.config.architectures import ARCHITECTURES, model_name, parse_model_name
from labkit.config.known_models import KNOWN_MODELS
from labkit.errors import InputError

NAMES = {
    "resnet20": {"num_layers": 20},
    "resnet110-v2": {"num_layers": 110, "resnet_version": 2},
    "resnet164-v2-bottleneck": {"num_layers": 164, "resnet_version": 2, "block": "bottleneck"},
    "resnet47-bottleneck": {"num_layers": 47, "block": "bottleneck"},
    "se_resnet20": {"model": "se_resnet", "num_layers": 20},
    "se_resnet29-v2-bottleneck": {
        "model": "se_resnet", "num_layers": 29, "resnet_version": 2, "block": "bottleneck",
    },
    "wide_resnet16_4": {"model": "wide_resnet", "num_layers": 16, "width_factor": 4.0},
    "wide_resnet16_1": {"model": "wide_resnet"},
    "wide_resnet28_1.3333333333": {"model": "wide_resnet", "num_layers": 28, "width_factor": 1.3333333333},
    "vgg11": {"model": "vgg", "num_layers": 11},
    "lenet": {"model": "lenet"},
    "alexnet": {"model": "alexnet"},
    "tutorial_cnn": {"model": "tutorial_cnn"},
    "vit": {"model": "vit"},
    "convnext": {"model": "convnext"},
    "fast": {"model": "fast"},
    "fast_0.5": {"model": "fast", "width_factor": 0.5},
    "fast_residual": {"model": "fast_residual"},
    "fast_residual_1.5": {"model": "fast_residual", "width_factor": 1.5},
    "mobilenetv2": {"model": "keras_application"},
    "imagenet_resnet18": {"model": "imagenet_resnet", "num_layers": 18},
    "imagenet_resnet50": {"model": "imagenet_resnet"},
    "imagenet_resnet50-v1.5": {"model": "imagenet_resnet", "bottleneck_stride": "second"},
    "imagenet_se_resnet50": {"model": "imagenet_se_resnet"},
    "imagenet_vgg16": {"model": "imagenet_vgg"},
    "imagenet_alexnet": {"model": "imagenet_alexnet"},
    "mobilenet": {"model": "keras_application", "application": "MobileNet"},
    "resnet101v2": {"model": "keras_application", "application": "ResNet101V2"},
    "densenet121": {"model": "keras_application", "application": "DenseNet121"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_and_back(name):
    config = ModelConfig(**NAMES[name])
    assert model_name(config) == name
    assert ModelConfig(**parse_model_name(name)) == config
    # A name says all of it, whatever the configuration that it is put into was before.
    for other in ("resnet164-v2-bottleneck", "resnet50v2"):
        before = Config.from_flat(parse_model_name(other))
        assert before.replace(parse_model_name(name)).model == config


def test_every_known_model_has_a_name_that_is_read_and_a_source_for_its_accuracy():
    for known in KNOWN_MODELS:
        assert model_name(ModelConfig(**parse_model_name(known.name))) == known.name
        assert (known.accuracy is None) == (known.source == "")
        assert known.accuracy is None or 0.56 < known.accuracy < 1
    assert {parse_model_name(known.name)["model"] for known in KNOWN_MODELS} == ARCHITECTURES.keys()
    assert len({known.name for known in KNOWN_MODELS}) == len(KNOWN_MODELS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet2O", ["'resnet2O'", "did you mean 'resnet"]),
        ("ResNet20", ["did you mean 'resnet20'"]),
        ("vgg", ["'vgg' lacks its depth", "vgg11, vgg13"]),
        ("resnet020", ["did you mean 'resnet20'"]),
        ("resnet20-v1", ["did you mean 'resnet20'"]),
        ("resnet20-v3", ["did you mean"]),
        ("resnet20-basic", ["did you mean"]),
        ("wide_resnet16", ["did you mean 'wide_resnet16_4'"]),
        ("wide_resnet16_4.0", ["did you mean 'wide_resnet16_4'"]),
        ("wide_resnet16_1.2.3", ["did you mean"]),
        ("tutorial_cnn5", ["did you mean 'tutorial_cnn'"]),
        ("fast_1", ["did you mean 'fast'"]),
        ("transformer", ["'transformer'", "known", "resnet20", "vgg11"]),
        ("", ["unknown model ''"]),
        ("resnet" + "9" * 5000, ["unknown model"]),
        ("resnet21", ["model 'resnet21'", "6n+2", "20 or 26"]),
        ("resnet32-bottleneck", ["9n+2", "29 or 38"]),
        ("wide_resnet17_4", ["6n+4", "16 or 22"]),
        ("vgg12", ["11, 13, 16, 19"]),
        ("resnet18", ["6n+2", "14 or 20", "imagenet_resnet18 is for larger images"]),
        ("imagenet_resnet20", ["model 'imagenet_resnet20'", "18, 34, 50, 101, 152"]),
        ("imagenet_resnet", ["lacks its depth", "imagenet_resnet18"]),
        ("imagenet_resnet18-v1.5", ["did you mean 'imagenet_resnet50-v1.5'"]),
        ("resnet20-v1.5", ["did you mean 'resnet20'"]),
        ("vgg11-v2", ["did you mean 'vgg11'"]),
    ],
)
def test_other_names_are_refused_in_one_line(name, words):
    with pytest.raises(InputError) as refusal:
        parse_model_name(name)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)
