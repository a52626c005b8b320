"""Activations that XLA compiles for a training step are those of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.models import activation
from labkit.models.activation import Activation
from labkit.models.layers import recorded_batch_statistics


def _outputs_and_gradient(layer, inputs, upstream, recorded):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        if recorded:
            with recorded_batch_statistics():
                outputs = layer(inputs)
        else:
            outputs = layer(inputs)
    return outputs, tape.gradient(outputs, inputs, upstream)


@pytest.fixture
def compiled(monkeypatch):
    """What the compiled way was used for."""
    used = []

    def spied(function, inputs):
        used.append(inputs.shape)
        return activate(function, inputs)

    activate = activation._activate
    monkeypatch.setattr(activation, "_activate", spied)
    return used


@pytest.mark.parametrize("compute", [_outputs_and_gradient, tf.function(_outputs_and_gradient, autograph=False)])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_training_step_gets_the_exact_values_and_gradients(name, policy, compute, compiled):
    layer, exact = Activation(name, dtype=policy), keras.layers.Activation(name, dtype="float64")
    generator = np.random.default_rng(0)
    # Ordinary values, very small and very large ones, and shapes without any.
    for values in (
        generator.normal(size=(5, 3, 3, 7)),
        generator.normal(size=(2, 9)) * 1e-20,
        generator.normal(size=(64,)) * 1e3,
        np.zeros((0, 4)),
        np.array(1.5),
    ):
        inputs = tf.cast(values, layer.compute_dtype)
        upstream = tf.cast(generator.normal(size=values.shape), layer.compute_dtype)
        found = compute(layer, inputs, upstream, recorded=True)
        arguments = (tf.cast(each, tf.float64) for each in (inputs, upstream))
        wanted = _outputs_and_gradient(exact, *arguments, recorded=False)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == inputs.shape and ours.dtype == layer.compute_dtype
            largest = {"float32": 1e-6, "mixed_bfloat16": 2**-8}[policy]  # half a unit in the last place
            ours = tf.cast(ours, tf.float64)
            np.testing.assert_allclose(ours, theirs, rtol=largest, atol=1e-6 * np.abs(theirs).max(initial=0))
    assert compiled


def test_nothing_else_is_compiled(compiled):
    inputs = tf.constant([[-1.0, 2.0]])
    Activation("gelu")(inputs)  # a prediction
    with recorded_batch_statistics():
        Activation("tanh")(inputs)
        Activation("gelu", dtype="float64")(tf.cast(inputs, tf.float64))
    assert not compiled


def test_a_gpu_gets_kerass_own(compiled, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: ["a GPU"])
    with recorded_batch_statistics():
        Activation("gelu")(tf.constant([[-1.0, 2.0]]))
    assert not compiled
