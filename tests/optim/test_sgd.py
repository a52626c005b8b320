"""SGD compared with its formulas in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization
from labkit.optim.optimizers import SGD
from tests.optim.updates import updated

RATES = (0.1, 0.05, 0.2)


def model_and_gradients():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    random = np.random.default_rng(0)
    model.layers[-1].bias.assign(random.normal(size=2))
    gradients = [
        [random.normal(size=weight.shape).astype(np.float32) for weight in model.trainable_variables]
        for _ in RATES
    ]
    return model, gradients


def by_labkit(config: OptimizerConfig):
    model, gradients = model_and_gradients()
    optimizer = SGD(model, config)
    for values, rate in zip(gradients, RATES, strict=True):
        found = updated(model, optimizer, [tf.constant(value) for value in values], rate)
    return found


def by_hand(config: OptimizerConfig):
    model, gradients = model_and_gradients()
    weights = [weight.numpy().astype(np.float64) for weight in model.trainable_variables]
    velocities = [np.zeros_like(weight) for weight in weights]
    for values, rate in zip(gradients, RATES, strict=True):
        norm = np.sqrt(sum(float((value**2).sum()) for value in values))
        clip = 1.0
        if config.gradient_clip_norm is not None:
            clip = min(1.0, config.gradient_clip_norm / norm)
        for index, value in enumerate(values):
            gradient = clip * value
            decay = config.weight_decay
            if weights[index].ndim == 1 and config.weight_decay_of == "kernels":
                decay = 0.0
            if config.weight_decay_mode == "l2":
                gradient = gradient + decay * weights[index]
            else:
                weights[index] = weights[index] - rate * decay * weights[index]
            velocities[index] = config.momentum * velocities[index] + gradient
            if config.nesterov:
                weights[index] = weights[index] - rate * (gradient + config.momentum * velocities[index])
            else:
                weights[index] = weights[index] - rate * velocities[index]
    return weights


@pytest.mark.parametrize(
    "fields",
    [
        {"weight_decay": 0.0},
        {"weight_decay": 0.0, "nesterov": True},
        {"weight_decay": 0.3},
        {"weight_decay": 0.3, "weight_decay_of": "kernels"},
        {"weight_decay": 0.3, "weight_decay_mode": "decoupled"},
        {
            "weight_decay": 0.3,
            "weight_decay_mode": "decoupled",
            "weight_decay_of": "kernels",
            "nesterov": True,
        },
        {"weight_decay": 0.3, "gradient_clip_norm": 0.5},
        {"weight_decay": 0.0, "gradient_clip_norm": 1000.0},
        {"weight_decay": 0.0, "momentum": 0.0},
    ],
    ids=str,
)
def test_updates_follow_the_formulas(fields):
    config = OptimizerConfig(**fields)
    for found, expected in zip(by_labkit(config), by_hand(config), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_head_has_its_own_learning_rate_and_only_the_given_indices_change():
    layers = [keras.layers.Dense(2, name="dense"), keras.layers.Dense(2, name="logits")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    config = OptimizerConfig(weight_decay=0.25, momentum=0.5)
    optimizer = SGD(model, config, head_factor=4.0)
    before = [weight.numpy() for weight in model.trainable_variables]
    indices = [1, 2, 3]  # all except the first kernel
    ones = [tf.ones(model.trainable_variables[index].shape) for index in indices]
    updated(model, optimizer, ones, 0.5, indices, times=2)
    for index, (weight, old) in enumerate(zip(model.trainable_variables, before, strict=True)):
        velocity, rate = 0.0, 0.5 * (4.0 if "logits" in weight.path else 1.0)
        expected = old.astype(np.float64)
        for _ in range(2 if index in indices else 0):
            velocity = 0.5 * velocity + 1.0 + 0.25 * expected
            expected = expected - rate * velocity
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
    assert not optimizer.velocities[0].numpy().any()


def test_normalization_offsets_have_their_own_learning_rate_but_the_common_decay():
    layers = [keras.layers.Conv2D(2, 1), BatchNormalization()]
    model = keras.Sequential([keras.Input((4, 4, 3)), *layers])
    for weight in model.trainable_variables:
        weight.assign(tf.fill(weight.shape, 2.0))
    config = OptimizerConfig(weight_decay=0.25, norm_bias_learning_rate_factor=8.0)
    ones = [tf.ones(weight.shape) for weight in model.trainable_variables]
    assert len(updated(model, SGD(model, config), ones, 0.5)) == 4
    for weight in model.trainable_variables:
        rate = 4.0 if weight.path == layers[1].beta.path else 0.5
        # The gradient is multiplied by the variable's own rate, the decay by the common rate.
        np.testing.assert_allclose(weight, 2.0 - rate * 1.0 - 0.5 * 0.25 * 2.0, rtol=1e-6)
