"""AdamW against Keras's, the average of weights against TensorFlow's, and what differs for some weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.optim.network import MovingAverage
from labkit.optim.optimizers import make_optimizer
from tests.optim.updates import updated

RATES = (0.01, 0.02, 0.005, 0.01)


def network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, name="dense"), keras.layers.Dense(2, name="logits")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    for layer in layers:
        layer.bias.assign(np.random.default_rng(2).normal(size=layer.bias.shape))
    return model


def gradients_of(model, number):
    random = np.random.default_rng(number)
    return [tf.constant(random.normal(size=weight.shape), tf.float32) for weight in model.trainable_variables]


@pytest.mark.parametrize("of", ["all", "kernels", "hidden_dense"])
def test_some_steps_equal_those_of_keras(of):
    model, other = network(), network()
    config = OptimizerConfig(
        optimizer="adamw", weight_decay=0.3, weight_decay_of=of, adamw_beta1=0.8, adamw_beta2=0.9
    )
    optimizer = make_optimizer(model, config)
    reference = keras.optimizers.AdamW(0.1, weight_decay=0.3, beta_1=0.8, beta_2=0.9)
    still = {"all": [], "kernels": [1, 3], "hidden_dense": [1, 2, 3]}[of]
    reference.exclude_from_weight_decay(var_list=[other.trainable_variables[index] for index in still])
    for number, rate in enumerate(RATES):
        gradients = gradients_of(model, number)
        found = updated(model, optimizer, gradients, rate)
        reference.learning_rate = rate
        reference.apply_gradients(zip(gradients, other.trainable_variables, strict=True))
        for ours, theirs in zip(found, other.trainable_variables, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.long
def test_a_weight_that_thaws_later_starts_as_if_it_were_the_first_step():
    model, fresh = network(), network()
    config = OptimizerConfig(optimizer="adamw", weight_decay=0.0)
    optimizer = make_optimizer(model, config)
    for number in range(50):
        updated(model, optimizer, gradients_of(model, number)[2:], 0.01, indices=[2, 3])
    gradients = gradients_of(model, 99)
    found = updated(model, optimizer, gradients, 0.01)
    expected = updated(fresh, make_optimizer(fresh, config), gradients, 0.01)
    for index in (0, 1):
        np.testing.assert_allclose(found[index], expected[index], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(optimizer.counters[0], [1, 1, 51, 51])


def test_clipping_comes_before_and_the_head_has_its_own_rate():
    model, other = network(), network()
    config = OptimizerConfig(optimizer="adamw", weight_decay=0.1, gradient_clip_norm=0.5)
    found = updated(model, make_optimizer(model, config, 3.0), gradients_of(model, 0), 0.01)
    gradients, _ = tf.clip_by_global_norm(gradients_of(other, 0), 0.5)
    for part, rate in (([0, 1], 0.01), ([2, 3], 0.03)):
        reference = keras.optimizers.AdamW(rate, weight_decay=0.1)
        variables = [other.trainable_variables[index] for index in part]
        reference.apply_gradients([(gradients[i], v) for i, v in zip(part, variables, strict=True)])
    for ours, theirs in zip(found, other.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


def test_the_moving_average_of_weights_is_that_of_tensorflow_1_with_num_updates():
    def normalized():
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])

    model, decay = normalized(), 0.6
    average = MovingAverage(model, normalized(), decay)
    for weight in model.weights:
        weight.assign(tf.random.normal(weight.shape))
    average.begin()
    copies = [tf.Variable(weight.value) for weight in model.weights]
    number = tf.Variable(0)
    reference = tf.train.ExponentialMovingAverage(decay, num_updates=number)
    reference.apply(copies)

    @tf.function
    def update(step):
        tf.distribute.get_replica_context().merge_call(
            lambda strategy: average.update(strategy, step), args=()
        )

    for step in range(30):  # from the 13th on, the decay is no longer limited
        for weight, copy in zip(model.weights, copies, strict=True):
            weight.assign_add(tf.random.normal(weight.shape))
            copy.assign(weight.value)
        number.assign(step + 1)
        reference.apply(copies)
        update(tf.constant(step, tf.int64))
        for ours, copy in zip(average.averaged.weights, copies, strict=True):
            np.testing.assert_allclose(ours, reference.average(copy), rtol=1e-5, atol=1e-6)
