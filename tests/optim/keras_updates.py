"""Updates of weights by labkit and by Keras, under a strategy of TensorFlow.

As a program with two logical devices, ``python -m tests.optim.keras_updates mirrored``, or ``central``: it
ends with "all held", or an AssertionError.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.config.optimizer import KERAS_OPTIMIZERS
from labkit.optim.optimizers import make_optimizer

RATES = (0.01, 0.02, 0.005, 0.01)


def network() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4, name="dense"), keras.layers.Dense(2, name="logits")]
    return keras.Sequential([keras.Input((3,)), *layers])


def gradients_of(number: int) -> list[np.ndarray]:
    random = np.random.default_rng(number)
    return [random.normal(size=shape).astype(np.float32) for shape in ((3, 4), (4,), (4, 2), (2,))]


def by_labkit(strategy: tf.distribute.Strategy, config: OptimizerConfig) -> list[np.ndarray]:
    """Return the weights after a step for each of ``RATES``, in which each replica has half a gradient."""
    with strategy.scope():
        model = network()
        optimizer = make_optimizer(model, config)
    replicas = strategy.num_replicas_in_sync

    def update(strategy, gradients, rate):
        weights = [weight.value for weight in model.trainable_weights]
        summed = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, list(zip(gradients, weights, strict=True))
        )
        optimizer.apply(strategy, summed, rate)

    def replica_step(gradients, rate):
        shares = [gradient / replicas for gradient in gradients]
        tf.distribute.get_replica_context().merge_call(update, args=(shares, rate))

    @tf.function
    def step(gradients, rate):
        strategy.run(replica_step, args=(gradients, rate))

    for number, rate in enumerate(RATES):
        step([tf.constant(gradient) for gradient in gradients_of(number)], tf.constant(rate))
    return [weight.numpy() for weight in model.trainable_weights]


def by_keras(optimizer: keras.optimizers.Optimizer) -> list[np.ndarray]:
    """Return the weights after the same steps of Keras."""
    model = network()
    for number, rate in enumerate(RATES):
        optimizer.learning_rate = rate
        optimizer.apply_gradients(zip(gradients_of(number), model.trainable_weights, strict=True))
    return [weight.numpy() for weight in model.trainable_weights]


def check(strategy: tf.distribute.Strategy, name: str) -> None:
    """Raise AssertionError unless labkit and Keras agree for an optimizer with decoupled weight decay."""
    config = OptimizerConfig(optimizer=name, weight_decay=0.1, weight_decay_mode="decoupled")
    decay = {"weight_decay": 0.1}
    if name == "keras_muon":
        decay["adam_weight_decay"] = 0.1  # of the weights that aren't matrices
    theirs = by_keras(getattr(keras.optimizers, KERAS_OPTIMIZERS[name])(0.01, **decay))
    for ours, expected in zip(by_labkit(strategy, config), theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=2e-6, err_msg=name)


if __name__ == "__main__":
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
    )
    devices = ["cpu:0", "cpu:1"]
    if sys.argv[1] == "mirrored":
        under = tf.distribute.MirroredStrategy(devices)
    else:
        under = tf.distribute.experimental.CentralStorageStrategy(devices, "cpu:0")
    for optimizer in KERAS_OPTIMIZERS:
        check(under, optimizer)
    print("all held")
