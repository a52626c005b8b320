"""The gradient of filters by matrix products is that of TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.models import convolution
from labkit.models.convolution import Conv2D, filter_gradient
from labkit.models.layers import recorded_batch_statistics


@pytest.mark.parametrize("shape", [(7, 7), (3, 5), (2, 2), (1, 1), (1, 4)])
@pytest.mark.parametrize("size", [(3, 3), (1, 1), (5, 3)])
@pytest.mark.parametrize("batch", [6, 5])
def test_the_gradient_is_that_of_tensorflow(shape, size, batch):
    generator = np.random.default_rng(0)
    images = tf.constant(generator.normal(size=(batch, *shape, 4)))
    upstream = tf.constant(generator.normal(size=(batch, *shape, 5)))
    expected = tf.raw_ops.Conv2DBackpropFilter(
        input=images,
        filter_sizes=[*size, 4, 5],
        out_backprop=upstream,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    of_any_batch = [tf.TensorSpec([None, *shape, channels], tf.float64) for channels in (4, 5)]
    traced = tf.function(lambda x, y: filter_gradient(x, y, size), input_signature=of_any_batch)
    for compute in (filter_gradient, lambda x, y, _: traced(x, y)):
        np.testing.assert_allclose(compute(images, upstream, size), expected, rtol=1e-12, atol=1e-12)


def _gradients(layer, images, recorded):
    with tf.GradientTape() as tape:
        tape.watch(images)
        if recorded:
            with recorded_batch_statistics():
                outputs = layer(images)
        else:
            outputs = layer(images)
        outputs = outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)
        loss = tf.reduce_sum(outputs**2)
    return [loss, *tape.gradient(loss, [images, layer.kernel.value])]


def _in_float64(layer, settings, images):
    other = Conv2D(256, **settings | {"dtype": "float64"})
    other.build(images.shape)
    other.set_weights(layer.get_weights())
    return other


@pytest.mark.parametrize("compute", [_gradients, tf.function(_gradients, autograph=False)])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_training_step_uses_it_for_many_channels_on_few_pixels(policy, compute, monkeypatch):
    used = []

    def spied(*arguments):
        used.append(arguments)
        return filter_gradient(*arguments)

    monkeypatch.setattr(convolution, "filter_gradient", spied)
    generator = np.random.default_rng(0)
    largest = {"float32": 4, "mixed_bfloat16": 8}[policy]
    for side, channels, changed, expected in (
        (3, 256, {}, True),
        (largest, 256, {}, True),
        (largest + 1, 256, {}, False),
        (3, 256, {"strides": 2}, False),
        (3, 255, {}, False),
        (3, 256, {"padding": "valid"}, False),
        (3, 256, {"kernel_size": 1}, False),
        (3, 256, {"dilation_rate": 2}, False),
    ):
        used.clear()
        settings = {"kernel_size": 3, "padding": "same", "use_bias": False, "dtype": policy} | changed
        layer = Conv2D(256, **settings)
        images = tf.constant(generator.normal(size=(4, side, side, channels)), dtype=layer.compute_dtype)
        plain = _gradients(layer, images, recorded=False)
        exact = _gradients(_in_float64(layer, settings, images), tf.cast(images, tf.float64), recorded=False)
        assert not used
        ours = compute(layer, images, recorded=True)
        assert bool(used) == expected
        for found, theirs, wanted in zip(ours, plain, exact, strict=True):
            found, theirs, wanted = (tf.cast(each, tf.float64).numpy() for each in (found, theirs, wanted))
            tolerance = 1e-5 if policy == "float32" else 2e-2
            # CPUs without bfloat16 instructions round more: then it may be as far off as TensorFlow's own.
            allowed = max(tolerance * np.abs(wanted).max(), 1.5 * np.abs(theirs - wanted).max())
            assert np.abs(found - wanted).max() <= allowed
