"""Activations that a training step computes in one pass over memory each way, compiled by XLA."""

import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from labkit.models.layers import is_recorded
from labkit.startup.tf_compat import watches_operations

# TensorFlow has no single operation for these and their gradients: it makes up to eleven passes.
FUNCTIONS: dict[Callable, Callable[[tf.Tensor], tf.Tensor]] = {
    keras.activations.gelu: lambda x: 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5))),
    keras.activations.silu: lambda x: x * tf.sigmoid(x),
}


@keras.saving.register_keras_serializable(package="labkit")
class Activation(keras.layers.Activation):
    """Keras's layer. A training step on a CPU computes ``FUNCTIONS`` in float32, in one pass each way.

    The result is the same but for rounding, in bfloat16 nearer to the exact one. Second derivatives aren't
    possible there. Arguments are those of ``keras.layers.Activation``.
    """

    def call(self, inputs):
        function = FUNCTIONS.get(self.activation)
        if function is None or not is_recorded() or inputs.dtype == tf.float64 or watches_operations():
            return super().call(inputs)
        if tf.config.list_logical_devices("GPU"):
            return super().call(inputs)
        return _activate(function, inputs)


def _activate(function: Callable, inputs: tf.Tensor) -> tf.Tensor:
    forward, backward = _compiled(function, inputs.dtype)

    @tf.custom_gradient
    def activate(x):
        def gradient(upstream):
            return tf.ensure_shape(backward(x, upstream), x.shape)

        return tf.ensure_shape(forward(x), x.shape), gradient

    return activate(inputs)


@functools.cache
def _compiled(function: Callable, dtype: tf.DType) -> tuple[Callable, Callable]:
    """Return ``function`` and its gradient for tensors of any shape: XLA compiles them anew for each."""
    anything = tf.TensorSpec(None, dtype)

    @tf.function(input_signature=[anything], jit_compile=True, autograph=False)
    def forward(x):
        return _rounded(function(tf.cast(x, tf.float32)), dtype)

    @tf.function(input_signature=[anything, anything], jit_compile=True, autograph=False)
    def backward(x, upstream):
        exact = tf.cast(x, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(exact)
            outputs = function(exact)
        return _rounded(tape.gradient(outputs, exact, tf.cast(upstream, tf.float32)), dtype)

    return forward, backward


def _rounded(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return float32 ``values`` as ``dtype``, to the nearest one, in ties to the even one.

    To bfloat16 with integer arithmetic: XLA's own conversion, which looks at each value for NaN, makes a pass
    take up to 1.5 times as long. A NaN that comes from bfloat16 or from arithmetic ends in 16 zeros, so it
    stays one.
    """
    if dtype != tf.bfloat16:
        return tf.cast(values, dtype)
    bits = tf.bitcast(values, tf.uint32)
    upper = tf.bitwise.right_shift(bits, tf.constant(16, tf.uint32))
    odd = tf.bitwise.bitwise_and(upper, tf.constant(1, tf.uint32))
    rounded = tf.bitwise.right_shift(bits + odd + tf.constant(0x7FFF, tf.uint32), tf.constant(16, tf.uint32))
    return tf.bitcast(tf.cast(rounded, tf.uint16), dtype)
