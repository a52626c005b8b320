"""Lookahead against its formulas, written out in NumPy."""

import keras
import numpy as np
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization
from labkit.optim.lookahead import Lookahead

TOTAL, EVERY, DECAY = 10, 3, 0.8


def test_weights_and_averages_follow_the_formulas_and_end_at_the_slow_ones():
    model = keras.Sequential([keras.Input((4, 4, 2)), keras.layers.Conv2D(3, 1), BatchNormalization()])
    config = OptimizerConfig(lookahead_every_steps=EVERY, lookahead_decay=DECAY)
    lookahead = Lookahead(model, config, TOTAL)
    strategy = tf.distribute.get_strategy()
    after = tf.function(lambda number: lookahead.after(strategy, number))
    random = np.random.default_rng(0)
    weights = [weight.numpy().astype(np.float64) for weight in model.weights]
    assert len(weights) == 6
    slow = [weight.copy() for weight in weights]
    for number in range(1, TOTAL + 1):
        moves = [random.normal(size=weight.shape).astype(np.float32) for weight in weights]
        for weight, move in zip(model.weights, moves, strict=True):
            weight.assign(weight + move)
        weights = [weight + move for weight, move in zip(weights, moves, strict=True)]
        after(tf.constant(number, tf.int64))
        if number % EVERY == 0 or number == TOTAL:
            keep = 1.0 if number == TOTAL else DECAY**EVERY * (number / TOTAL) ** 3
            slow = [keep * s + (1 - keep) * w for s, w in zip(slow, weights, strict=True)]
            weights = [s.copy() for s in slow]
        for found, expected in zip(model.weights, weights, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_reset_begins_at_the_weights_as_they_are():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    lookahead = Lookahead(model, OptimizerConfig(lookahead_every_steps=1), 1)
    for weight in model.weights:
        weight.assign(tf.ones_like(weight))
    lookahead.reset()
    lookahead.after(tf.distribute.get_strategy(), tf.constant(1, tf.int64))
    for weight in model.weights:
        np.testing.assert_array_equal(weight, np.ones(weight.shape))
