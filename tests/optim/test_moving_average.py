"""The moving average of weights against TensorFlow's own class, which the tutorial of 2017 used."""

import keras
import numpy as np
import tensorflow as tf

from labkit.optim.network import MovingAverage


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])


def test_it_is_the_average_of_tensorflow_1_with_num_updates():
    model, decay = network(), 0.6
    average = MovingAverage(model, network(), decay)
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
