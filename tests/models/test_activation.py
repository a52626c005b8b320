"""Activations that XLA compiles for a training step are those of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from labkit.config import ModelConfig
from labkit.models import activation
from labkit.models.activation import Activation
from labkit.models.layers import recorded_batch_statistics
from labkit.models.registry import build_model


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


COMPILED = tf.function(_outputs_and_gradient, autograph=False)


@pytest.mark.parametrize("compute", [_outputs_and_gradient, COMPILED])
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


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_a_training_that_diverges_shows_it(name, policy, compiled):
    layer = Activation(name, dtype=policy)
    values = tf.cast([np.nan, -np.nan, np.inf, 3e38, 1.0], layer.compute_dtype)
    upstream = tf.cast([1.0, 1.0, 1.0, 1.0, np.nan], layer.compute_dtype)
    outputs, gradient = _outputs_and_gradient(layer, values, upstream, recorded=True)
    outputs, gradient = (tf.cast(each, tf.float32).numpy() for each in (outputs, gradient))
    assert np.isnan(outputs[:2]).all() and outputs[2] == np.inf and np.isfinite(outputs[3:]).all()
    assert np.isnan(gradient[[0, 1, 4]]).all()
    assert compiled


def test_bfloat16_is_rounded_as_tensorflow_does():
    upper = np.arange(2**16, dtype=np.uint32)[:, None] << 16
    bits = (upper + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).ravel()
    values = bits.view(np.float32)
    values = tf.constant(values[~np.isnan(values)])
    ours, theirs = (
        tf.bitcast(rounded, tf.uint16)
        for rounded in (activation._rounded(values, tf.bfloat16), tf.cast(values, tf.bfloat16))
    )
    assert len(values) > 300_000
    np.testing.assert_array_equal(ours, theirs)


def test_networks_are_made_of_it_and_a_step_of_what_xla_compiles():
    config = ModelConfig(model="fast", num_layers=None, width_factor=0.125, activation="gelu")
    model = build_model(config, image_shape=(32, 32, 3), num_classes=10)
    assert sum(isinstance(layer, Activation) for layer in model.layers) == 7

    @tf.function(autograph=False)
    def step(images):
        with tf.GradientTape() as tape, recorded_batch_statistics():
            logits = model(images, training=True)
        return tape.gradient(logits, [weight.value for weight in model.trainable_weights])

    graph = step.get_concrete_function(tf.TensorSpec([None, 32, 32, 3])).graph
    calls = [operation for operation in graph.get_operations() if "PartitionedCall" in operation.type]
    assert len(calls) == 7 + 7, "one each way"


def test_a_dump_of_all_operations_gets_kerass_own(compiled, tmp_path):
    tf.debugging.experimental.enable_dump_debug_info(str(tmp_path), tensor_debug_mode="FULL_HEALTH")
    try:
        layer = Activation("gelu")
        values = tf.constant([[-1.0, 2.0]])
        tf.function(_outputs_and_gradient, autograph=False)(layer, values, values, True)
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
    assert not compiled


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
