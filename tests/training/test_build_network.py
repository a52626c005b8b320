"""What only a network's layers can tell is refused before any work."""

from types import SimpleNamespace

import pytest

from labkit.config import Config
from labkit.errors import InputError
from labkit.optim.network import build_model_to_train

MANIFEST = SimpleNamespace(num_classes=3, image_shape=(32, 32, 3), dataset="shapes")


def check(model: str = "resnet", **values):
    """Return which layers are frozen when."""
    values |= {"model": model, "num_layers": 8 if model == "resnet" else None}
    return build_model_to_train(Config.from_flat(values), MANIFEST, "channels_last")[1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"model": "tutorial_cnn", "progressive_resizing": "16:0.5"},
            "--progressive-resizing has images of 16",
        ),
        ({"model": "tutorial_cnn", "optimizer": "muon"}, "tutorial_cnn has none; choose --optimizer sgd"),
        ({"freeze": "stage9"}, "--freeze 'stage9' fits no stage"),
        ({"freeze": "logits", "head_learning_rate_factor": 5.0}, "--head-learning-rate-factor is 5.0 with"),
    ],
)
def test_what_a_network_cannot_do_is_refused(values, words):
    with pytest.raises(InputError, match=words) as refusal:
        check(**values)
    assert "\n" not in str(refusal.value)


def test_a_head_that_thaws_or_was_never_frozen_has_a_rate_of_its_own():
    thawing = {"freeze": "logits,stem", "unfreeze_every_steps": 5, "head_learning_rate_factor": 5.0}
    check(train_steps=6, **thawing)
    with pytest.raises(InputError, match="to the end"):
        check(train_steps=5, **thawing)
    assert check(freeze="stem", head_learning_rate_factor=5.0).at(0)
    check(freeze="logits")
