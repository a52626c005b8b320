"""SGD with momentum over the variables of any ``tf.distribute`` strategy."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.models.layers import BatchNormalization
from labkit.models.stages import HEAD
from labkit.optim.muon import kernels_of_muon, move

__all__ = ["SGD"]

MUON_MOMENTUM = 0.6  # that of airbench94_muon.py (Jordan, 2024)


class SGD(tf.Module):
    """Stochastic gradient descent with momentum, weight decay and clipping.

    With gradient g, weight w, velocity v, learning rate r, momentum m and decay d::

        l2:        g = g + d w                          decoupled:  w = w - r d w
        v = m v + g;  w = w - r v                       (Nesterov: w = w - r (g + m v))

    The offsets of normalization have their own r, ``norm_bias_learning_rate_factor`` times the others'
    (Jordan, 2024, arXiv:2404.00498, section 3.4), and d over that factor, so that r d is the same for all;
    the head has its own, too, ``head_factor`` times. Convolutions may be moved by ``muon.move``
    instead, without decay. The learning rate is not
    part of the velocity, as in TensorFlow's ``MomentumOptimizer`` of 2017. Clipping comes first and sees the
    gradient of the data alone. Make it inside ``strategy.scope()``, before a checkpoint is restored.

    Args:
        model: its trainable variables are updated.
        config: momentum, decay and clipping.
        head_factor: of the learning rate, for the layer that gives the logits.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(name="sgd")
        self._config = config
        self._variables = [variable.value for variable in model.trainable_variables]
        kernels = kernels_of_muon(model) if config.optimizer == "muon" else []
        by_muon = {id(kernel) for kernel in kernels}
        self._by_muon = [id(variable) in by_muon for variable in model.trainable_variables]
        offsets = {id(layer.beta) for layer in model.layers if isinstance(layer, BatchNormalization)}
        head = {id(weight) for layer in model.layers if layer.name == HEAD for weight in layer.weights}
        self._factors = [
            config.norm_bias_learning_rate_factor
            if id(variable) in offsets
            else head_factor
            if id(variable) in head
            else 1.0
            for variable in model.trainable_variables
        ]
        self._decay = [
            0.0
            if len(variable.shape) == 1 and not config.decay_norm_and_bias
            else config.weight_decay / config.norm_bias_learning_rate_factor
            if id(variable) in offsets and config.norm_bias_learning_rate_factor
            else config.weight_decay
            for variable in model.trainable_variables
        ]
        self.velocities = []
        for index, variable in enumerate(self._variables):
            # On the same parameter server as its weight: one operation updates both.
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = tf.zeros(variable.shape, variable.dtype)
                velocity = tf.Variable(zeros, trainable=False, name=f"velocity_{index}")
            self.velocities.append(velocity)

    def apply(
        self, strategy, gradients, learning_rate: tf.Tensor, places: Sequence[int] | None = None
    ) -> list:
        """Update the weights, in cross-replica context, inside a ``tf.function``. Returns the operations.

        Args:
            strategy: the strategy that owns the variables.
            gradients: already summed over the replicas, one for each trainable variable that is updated.
            learning_rate: float32 scalar.
            places: which of the trainable variables are; nothing happens to the others, or to their
                velocities (None: all).
        """
        scale = self._clip_factor(strategy, gradients)
        places = range(len(self._variables)) if places is None else places
        return [
            strategy.extended.update(
                self._variables[place],
                self._update,
                args=(self.velocities[place], gradient, learning_rate, scale, place),
                group=False,
            )
            for place, gradient in zip(places, gradients, strict=True)
        ]

    def _clip_factor(self, strategy, gradients) -> tf.Tensor | None:
        """Return what the gradients are multiplied with (Pascanu et al., 2013), None without clipping."""
        if self._config.gradient_clip_norm is None:
            return None
        local = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        return self._config.gradient_clip_norm / tf.maximum(
            tf.linalg.global_norm(local), self._config.gradient_clip_norm
        )

    def _update(self, variable, velocity, gradient, learning_rate, scale, place: int):
        decay, factor = self._decay[place], self._factors[place]
        learning_rate = tf.cast(learning_rate, variable.dtype)
        if scale is not None:
            gradient = gradient * scale
        if self._by_muon[place]:
            factor *= self._config.muon_learning_rate / self._config.learning_rate
            return move(variable, velocity, gradient, factor * learning_rate, MUON_MOMENTUM)
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
