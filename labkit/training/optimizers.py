"""SGD with momentum over the variables of any ``tf.distribute`` strategy."""

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization

__all__ = ["SGD"]


class SGD(tf.Module):
    """Stochastic gradient descent with momentum, weight decay and clipping.

    With gradient g, weight w, velocity v, learning rate r, momentum m and decay d::

        l2:        g = g + d w                          decoupled:  w = w - r d w
        v = m v + g;  w = w - r v                       (Nesterov: w = w - r (g + m v))

    A bias of a normalization has its own r, ``norm_bias_learning_rate_factor`` times the others' (Jordan,
    2024, arXiv:2404.00498, section 3.4). The learning rate is not part of the velocity, as in TensorFlow's
    ``MomentumOptimizer`` of 2017. Clipping comes first and sees the gradient of the data alone. Make it
    inside ``strategy.scope()``, before a checkpoint is restored.

    Args:
        model: its trainable variables are updated.
        config: momentum, decay and clipping.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig) -> None:
        super().__init__(name="sgd")
        self._config = config
        self._variables = [variable.value for variable in model.trainable_variables]
        self._decay = [
            config.weight_decay if config.decay_norm_and_bias or len(variable.shape) > 1 else 0.0
            for variable in model.trainable_variables
        ]
        offsets = {id(layer.beta) for layer in model.layers if isinstance(layer, BatchNormalization)}
        self._factors = [
            config.norm_bias_learning_rate_factor if id(variable) in offsets else 1.0
            for variable in model.trainable_variables
        ]
        self.velocities = []
        for index, variable in enumerate(self._variables):
            # On the same parameter server as its weight: one operation updates both.
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = tf.zeros(variable.shape, variable.dtype)
                velocity = tf.Variable(zeros, trainable=False, name=f"velocity_{index}")
            self.velocities.append(velocity)

    def apply(self, strategy, gradients, learning_rate: tf.Tensor) -> list:
        """Update the weights, in cross-replica context, inside a ``tf.function``. Returns the operations.

        Args:
            strategy: the strategy that owns the variables.
            gradients: already summed over the replicas, one for each trainable variable.
            learning_rate: float32 scalar.
        """
        scale = self._clip_factor(strategy, gradients)
        return [
            strategy.extended.update(
                variable,
                self._update,
                args=(velocity, gradient, learning_rate, scale, decay, factor),
                group=False,
            )
            for variable, velocity, gradient, decay, factor in zip(
                self._variables, self.velocities, gradients, self._decay, self._factors, strict=True
            )
        ]

    def _clip_factor(self, strategy, gradients) -> tf.Tensor | None:
        """Return what the gradients are multiplied with (Pascanu et al., 2013), None without clipping."""
        if self._config.gradient_clip_norm is None:
            return None
        local = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        return self._config.gradient_clip_norm / tf.maximum(
            tf.linalg.global_norm(local), self._config.gradient_clip_norm
        )

    def _update(self, variable, velocity, gradient, learning_rate, scale, decay: float, factor: float):
        learning_rate = tf.cast(learning_rate, variable.dtype)
        if factor != 1.0:
            learning_rate *= factor
        if scale is not None:
            gradient = gradient * scale
        if decay and self._config.weight_decay_mode == "l2":
            gradient = gradient + decay * variable
        elif decay:
            variable.assign_sub(learning_rate * decay * variable)
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self._config.momentum,
            use_nesterov=self._config.nesterov,
        )
