"""Runs in a process of its own, which has two logical devices; ends with "all held", or an AssertionError."""

import numpy as np
import tensorflow as tf

from labkit.distributed.exchange import compressed, sum_over_replicas

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(2)])
devices = ["/cpu:0", "/cpu:1"]
gradients = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)  # of each replica
exact = gradients.sum(axis=0)


def exchanged(strategy: tf.distribute.Strategy, compression: str) -> np.ndarray:
    """Return the sum of the gradients as a variable gets it."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([64]), trainable=False)

    def update(strategy, sent):
        [total] = sum_over_replicas(strategy, sent, [variable])
        return strategy.extended.update(variable, lambda weight, by: weight.assign(by), args=(total,))

    def replica_step():
        context = tf.distribute.get_replica_context()
        mine = tf.reshape(tf.gather(gradients, context.replica_id_in_sync_group), [64])
        context.merge_call(update, args=(compressed([mine], compression),))

    tf.function(lambda: strategy.run(replica_step))()
    return variable.numpy()


for strategy in (
    tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0"),
    tf.distribute.MirroredStrategy(devices),
):
    np.testing.assert_array_equal(exchanged(strategy, "none"), exact)
    rounded = exchanged(strategy, "bfloat16")
    by_hand = tf.cast(tf.reduce_sum(tf.cast(gradients, tf.bfloat16), axis=0), tf.float32)
    np.testing.assert_array_equal(rounded, by_hand)
    assert (rounded != exact).any()
print("all held", flush=True)
