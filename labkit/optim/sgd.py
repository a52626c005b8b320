"""SGD with momentum, and Muon for the kernels of convolutions."""

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.optim.muon import muon_kernels, update_kernel
from labkit.optim.optimizer import Optimizer

__all__ = ["SGD"]

MUON_MOMENTUM = 0.6  # that of airbench94_muon.py (Jordan, 2024)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, weight decay and clipping.

    With gradient g, weight w, velocity v, learning rate r, momentum m and decay d::

        l2:        g = g + d w                          decoupled:  w = w - r d w
        v = m v + g;  w = w - r v                       (Nesterov: w = w - r (g + m v))

    The velocity does not include the learning rate, as in TensorFlow's ``MomentumOptimizer`` of 2017. With
    ``optimizer="muon"``, ``muon.update_kernel`` updates the kernels of convolutions, without weight decay.
    Arguments, and what differs for some weights: see ``Optimizer``.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "sgd")
        kernels = muon_kernels(model) if config.optimizer == "muon" else []
        by_muon = {id(kernel) for kernel in kernels}
        self._by_muon = [id(variable) in by_muon for variable in model.trainable_variables]
        self.velocities = self.make_slots("velocity")

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """The velocities."""
        return {"velocity": list(self.velocities)}

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        [velocity] = slots
        decay, factor = self._decay[index], self._factors[index]
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
