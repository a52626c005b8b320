"""SGD with momentum over the variables of any ``tf.distribute`` strategy."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization
from labkit.models.stages import HEAD
from labkit.optim.muon import muon_kernels, update_kernel

__all__ = ["SGD"]

MUON_MOMENTUM = 0.6  # that of airbench94_muon.py (Jordan, 2024)


class SGD(tf.Module):
    """Stochastic gradient descent with momentum, weight decay and clipping.

    With gradient g, weight w, velocity v, learning rate r, momentum m and decay d::

        l2:        g = g + d w                          decoupled:  w = w - r d w
        v = m v + g;  w = w - r v                       (Nesterov: w = w - r (g + m v))

    The velocity does not include the learning rate, as in TensorFlow's ``MomentumOptimizer`` of 2017.
    Clipping comes first and applies to the gradient of the loss without weight decay.

    The learning rate differs for some weights. For the offsets (beta) of batch normalization, r is multiplied
    by ``norm_bias_learning_rate_factor`` (Jordan, 2024, arXiv:2404.00498, section 3.4) and d is divided by
    it, so that r d is the same for all weights. For the head, r is multiplied by ``head_factor``. With
    ``optimizer="muon"``, ``muon.update_kernel`` updates the kernels of convolutions, without weight decay.

    Create it inside ``strategy.scope()``, before a checkpoint is restored.

    Args:
        model: the model whose trainable variables are updated.
        config: momentum, decay and clipping.
        head_factor: factor of the learning rate for the layer that computes the logits.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(name="sgd")
        self._config = config
        self._variables = [variable.value for variable in model.trainable_variables]
        self._paths = [variable.path for variable in model.trainable_variables]
        kernels = muon_kernels(model) if config.optimizer == "muon" else []
        by_muon = {id(kernel) for kernel in kernels}
        self._by_muon = [id(variable) in by_muon for variable in model.trainable_variables]
        offsets = {id(layer.beta) for layer in model.layers if isinstance(layer, BatchNormalization)}
        head = {id(weight) for layer in model.layers if layer.name == HEAD for weight in layer.weights}
        self._factors, self._decay = [], []
        for variable in model.trainable_variables:
            factor, decay = 1.0, config.weight_decay
            if id(variable) in offsets:
                factor = config.norm_bias_learning_rate_factor
                decay = decay / factor if factor else decay
            elif id(variable) in head:
                factor = head_factor
            if len(variable.shape) == 1 and not config.decay_norm_and_bias:
                decay = 0.0
            self._factors.append(factor)
            self._decay.append(decay)
        self.velocities = []
        for index, variable in enumerate(self._variables):
            # On the same parameter server as its weight, because one operation updates both.
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = tf.zeros(variable.shape, variable.dtype)
                velocity = tf.Variable(zeros, trainable=False, name=f"velocity_{index}")
            self.velocities.append(velocity)

    def apply(
        self, strategy, gradients, learning_rate: tf.Tensor, indices: Sequence[int] | None = None
    ) -> list:
        """Update the weights and return the operations.

        Call it in cross-replica context, inside a ``tf.function``.

        Args:
            strategy: the strategy that owns the variables.
            gradients: one gradient for each updated variable, already summed over the replicas.
            learning_rate: float32 scalar.
            indices: which of the model's trainable variables to update; None updates all. Other variables and
                their velocities do not change.
        """
        indices = range(len(self._variables)) if indices is None else indices
        with tf.name_scope("optimizer"):
            scale = self._clip_factor(strategy, gradients)
            return [
                strategy.extended.update(
                    self._variables[index],
                    self._update,
                    args=(self.velocities[index], gradient, learning_rate, scale, index),
                    group=False,
                )
                for index, gradient in zip(indices, gradients, strict=True)
            ]

    def _clip_factor(self, strategy, gradients) -> tf.Tensor | None:
        """Return the factor that clips the gradients' norm (Pascanu et al., 2013); None without clipping."""
        if self._config.gradient_clip_norm is None:
            return None
        local = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        return self._config.gradient_clip_norm / tf.maximum(
            tf.linalg.global_norm(local), self._config.gradient_clip_norm
        )

    def _update(self, variable, velocity, gradient, learning_rate, scale, index: int):
        with tf.name_scope(self._paths[index]):
            return self._step(variable, velocity, gradient, learning_rate, scale, index)

    def _step(self, variable, velocity, gradient, learning_rate, scale, index: int):
        decay, factor = self._decay[index], self._factors[index]
        learning_rate = tf.cast(learning_rate, variable.dtype)
        if scale is not None:
            gradient = gradient * scale
        if self._by_muon[index]:
            factor *= self._config.muon_learning_rate / self._config.learning_rate
            return update_kernel(variable, velocity, gradient, factor * learning_rate, MUON_MOMENTUM)
        if factor != 1.0:
            learning_rate *= factor
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
