"""What replicas exchange."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.distributed.exchange import all_reduce_bytes, update_moving_averages
from labkit.errors import InputError
from labkit.models.layers import BatchNormalization
from labkit.models.registry import build_model
from labkit.training.checks import check_together


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_replicas_sum_compressed_gradients_up_to_rounding():
    """In a process of its own: logical devices can't be made once TensorFlow has begun."""
    script = Path(__file__).with_name("compressed.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert ended.stdout.endswith("all held\n"), ended.stderr[-3000:]


def test_compressed_gradients_are_half_the_bytes_and_statistics_are_not():
    config = Config.from_flat({"num_layers": 8}).model
    model = build_model(config, num_classes=10, image_shape=(32, 32, 3), seed=0)
    gradients = 4 * sum(weight.value.shape.num_elements() for weight in model.trainable_weights)
    statistics = 4 * sum(weight.value.shape.num_elements() for weight in model.non_trainable_weights)
    assert all_reduce_bytes(model, frozenset(), 2) == gradients + statistics
    assert all_reduce_bytes(model, frozenset(), 2, "bfloat16") == gradients / 2 + statistics
    assert all_reduce_bytes(model, frozenset(), 4, "bfloat16") == 1.5 * (gradients / 2 + statistics)


def test_compression_is_refused_where_it_changes_nothing_or_too_much():
    config = Config.from_flat({"gradient_compression": "bfloat16"})
    check_together(config, num_workers=2, asynchronous=False)
    check_together(config, num_workers=1, asynchronous=True)
    with pytest.raises(InputError, match="one replica"):
        check_together(config, num_workers=1, asynchronous=False)
    with pytest.raises(InputError, match="float64"):
        Config.from_flat({"gradient_compression": "bfloat16", "precision": "float64"})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("adapts", [True, False])
def test_moving_averages_forget_their_initial_values_soon_unless_a_decay_is_given(adapts, dtype):
    """The reference is the recursion of tf.train.ExponentialMovingAverage with num_updates, in NumPy."""
    layer = BatchNormalization(decay=0.8, name="norm", dtype=dtype)
    images = keras.Input((2, 2, 3), dtype=dtype)
    model = keras.Model(images, layer(images))
    strategy, rng = tf.distribute.get_strategy(), np.random.default_rng(0)
    batches = rng.normal(5.0, 1.0, (50, 2, 3)).astype(dtype)

    @tf.function
    def update(mean, variance, updates):
        done = updates if adapts else None
        strategy.run(
            lambda: tf.distribute.get_replica_context().merge_call(
                update_moving_averages, args=(model, {"norm": (mean, variance)}, done)
            )
        )

    expected = np.stack([np.zeros(3), np.ones(3)])
    for number, batch in enumerate(batches):
        update(tf.constant(batch[0]), tf.constant(batch[1]), tf.constant(number, tf.int64))
        kept = min(0.8, (1 + number) / (10 + number)) if adapts else 0.8
        expected = kept * expected + (1 - kept) * batch
        found = [layer.moving_mean.numpy(), layer.moving_variance.numpy()]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        if number == 3:
            assert (np.abs(found[0] - 5.0).max() < 2.0) == adapts
