"""Optimizers of Keras: their updates, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config, OptimizerConfig
from labkit.config.optimizer import KERAS_OPTIMIZERS, LABKITS
from labkit.data.recipe import requested_config
from labkit.errors import InputError
from labkit.optim.optimizers import check_keras_optimizer
from labkit.parts.code import allow
from labkit.parts.objects import as_files
from tests import own_nets
from tests.optim import keras_updates

OWN = Path(own_nets.__file__)


def test_each_optimizer_of_keras_has_a_name():
    base = keras.optimizers.Optimizer
    kinds = {name for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)}
    kinds = {name for name in kinds if issubclass(getattr(keras.optimizers, name), base)}
    known = {*KERAS_OPTIMIZERS.values(), "SGD", "AdamW"}
    assert kinds == known | {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
    assert not KERAS_OPTIMIZERS.keys() & set(LABKITS)


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_some_steps_equal_those_of_keras(name):
    keras_updates.check(tf.distribute.get_strategy(), name)


def test_a_class_of_ones_own_may_read_the_rate_of_the_step_and_have_any_attributes():
    allow({str(OWN): OWN.read_bytes()})
    steps = [keras_updates.gradients_of(number) for number in range(len(keras_updates.RATES))]
    for name in ("Plain", "WithAttributes"):
        config = OptimizerConfig(optimizer=f"{OWN}:{name}", weight_decay=0.0)
        check_keras_optimizer(config)
        found = keras_updates.by_labkit(tf.distribute.get_strategy(), config)
        for weight, before, *gradients in zip(
            found, keras_updates.network().get_weights(), *steps, strict=True
        ):
            change = sum(rate * one for rate, one in zip(keras_updates.RATES, gradients, strict=True))
            np.testing.assert_allclose(weight, before - change, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mirrored", "central"])
def test_they_do_on_two_devices(strategy):
    command = [sys.executable, "-m", "tests.optim.keras_updates", strategy]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.stdout.endswith("all held\n"), ended.stderr[-3000:]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimizer": "adam", "optimizer_arguments": "beta1=0.3"}, "'beta1'"),
        ({"optimizer": "adam", "optimizer_arguments": "weight_decay=0.1"}, "give --weight-decay"),
        ({"optimizer": "adam", "optimizer_arguments": "use_ema=True"}, "give --ema-decay"),
        ({"optimizer": f"{OWN}:slow_lion"}, "give --learning-rate 0.0005"),
        ({"optimizer": f"{OWN}:no_optimizer"}, "returned nothing"),
        ({"optimizer": f"{OWN}:Signum", "optimizer_arguments": "beta=0.5,gamma=1"}, "'gamma'"),
        ({"optimizer": f"{OWN}:Signun"}, "did you mean 'Signum'"),
        ({"optimizer": f"{OWN}:NoUpdate"}, "can't make an update"),
        ({"optimizer": f"{OWN}:Hidden"}, "makes variables that Keras doesn't know of"),
        ({"optimizer": f"{OWN}:HiddenUntilUsed"}, "makes variables that Keras doesn't know of"),
        ({"optimizer": f"{OWN}:Inner"}, "makes variables that Keras doesn't know of"),
        ({"optimizer": f"{OWN}:OwnApply"}, "has its own apply, which labkit doesn't call"),
        ({"optimizer": "adam", "optimizer_arguments": "beta_1=abc"}, "can't make an update"),
    ],
)
def test_what_labkit_would_not_do_is_refused(values, words):
    allow({str(OWN): OWN.read_bytes()})
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        check_keras_optimizer(OptimizerConfig(**values))
    assert "\n" not in str(caught.value) and "--optimizer" in str(caught.value)


def test_an_optimizer_of_a_saved_model_or_with_flags_of_its_own_is_refused():
    for values in ({"optimizer": "net.keras"}, {"optimizer": "sgd", "optimizer_arguments": "beta=1"}):
        with pytest.raises(InputError, match="^--optimizer"):
            OptimizerConfig(**values)


@pytest.mark.parametrize(("given", "rate"), [({}, 0.001), ({"learning_rate": 0.3}, 0.3)])
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "RMSprop", "mine.py:Mine"])
def test_without_a_learning_rate_it_is_not_that_of_sgd(optimizer, given, rate):
    values = {"optimizer": optimizer, **given}
    assert Config.from_flat(values).optimizer.learning_rate == rate
    assert requested_config(None, values).optimizer.learning_rate == rate
    assert requested_config("smoke", values).optimizer.learning_rate == rate


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda: keras.optimizers.SGD(0.5, momentum=0.8), {"optimizer": "sgd", "momentum": 0.8}),
        (lambda: keras.optimizers.AdamW(0.5), {"weight_decay": 0.004, "weight_decay_mode": "decoupled"}),
        (
            lambda: keras.optimizers.Lion(0.5, global_clipnorm=2),
            {"optimizer": "lion", "gradient_clip_norm": 2},
        ),
        (lambda: own_nets.Signum(0.5, beta=0.7), {"optimizer_arguments": {"beta": 0.7}}),
        (lambda: keras.optimizers.Adam, {"optimizer": "adam"}),
        (lambda: keras.optimizers.Muon, {"optimizer": "keras_muon"}),
    ],
)
def test_an_object_is_the_same_as_its_flags(optimizer, expected):
    with as_files({"optimizer": optimizer()}) as flags:
        assert expected.items() <= flags.items()
        config = Config.from_flat(flags).optimizer
    if "learning_rate" in flags:
        assert config.learning_rate == 0.5 and config.learning_rate_schedule == "constant"
        assert config.weight_decay == expected.get("weight_decay", 0.0)


def without_decay_of_biases() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "beside", "words"),
    [
        (
            lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)),
            {},
            "schedule of its",
        ),
        (lambda: keras.optimizers.Adam(0.1, clipvalue=1.0), {}, "clipvalue=1.0"),
        (without_decay_of_biases, {}, "give weight_decay_of='kernels'"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), {}, "wraps others"),
        (lambda: keras.optimizers.Adam(0.1), {"learning_rate": 0.2}, "learning_rate is given"),
        (lambda: keras.optimizers.SGD(0.1, 0.9), {"momentum": 0.5}, "momentum is given"),
        (
            lambda: keras.optimizers.Adam(0.1),
            {"optimizer_arguments": {"beta_1": 0.5}},
            "optimizer_arguments is",
        ),
        (lambda: 3, {}, "optimizer is 3"),
    ],
)
def test_an_object_that_is_no_flags_is_refused(optimizer, beside, words):
    with pytest.raises(InputError, match=words), as_files({"optimizer": optimizer(), **beside}):
        pass
