"""labkit's optimizers: SGD with momentum, with Muon for the kernels of convolutions, and AdamW."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.config.optimizer import LABKITS
from labkit.optim.keras_optimizer import KerasOptimizer
from labkit.optim.muon import muon_kernels, update_kernel
from labkit.optim.optimizer import Optimizer

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


EPSILON = 1e-7  # Keras's, of AdamW


class AdamW(Optimizer):
    """Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2017), arXiv:1711.05101, algorithm 2.

    With gradient g, weight w, learning rate r, decay d, betas b and c, and t updates of the weight so far,
    this one included::

        w = w - r d w
        m = b m + (1 - b) g;  s = c s + (1 - c) g^2
        w = w - r sqrt(1 - c^t) / (1 - b^t) m / (sqrt(s) + epsilon)

    Epsilon stands where Kingma & Ba (2014, end of section 2) put it for speed, and where Keras has it. A
    weight that was frozen at first starts with t = 1. Arguments, and what differs for some weights: see
    ``Optimizer``.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "adamw")
        self.means = self.make_slots("mean")
        self.squares = self.make_slots("square")
        # Of the weights' type, as all state of a run is; float32 counts exactly to 16 million.
        zeros = tf.zeros([len(self._variables)], self._variables[0].dtype)
        self.updates = tf.Variable(zeros, trainable=False, name="updates")

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """The moving means of the gradient and of its square."""
        return {"mean gradient": list(self.means), "mean squared gradient": list(self.squares)}

    @property
    def counters(self) -> list[tf.Variable]:
        """How often each weight was updated, [weights]."""
        return [self.updates]

    def _count(self, strategy: Any, indices: Sequence[int]) -> None:
        ones = np.zeros(len(self._variables))
        ones[list(indices)] = 1.0
        strategy.extended.update(self.updates, lambda updates: updates.assign_add(ones), group=False)

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        (mean, square), [updates] = slots, counters
        beta1, beta2 = self._config.adamw_beta1, self._config.adamw_beta2
        count = updates[index]
        learning_rate *= self._factors[index]
        if self._decay[index]:
            variable.assign_sub(learning_rate * self._decay[index] * variable)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=tf.pow(tf.constant(beta1, count.dtype), count),
            beta2_power=tf.pow(tf.constant(beta2, count.dtype), count),
            lr=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=EPSILON,
            grad=gradient,
        )


def make_optimizer(model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> Optimizer:
    """Return the optimizer; see ``Optimizer`` for the arguments. Call it inside ``strategy.scope()``."""
    if config.optimizer == "adamw":
        return AdamW(model, config, head_factor)
    by = SGD if config.optimizer in LABKITS else KerasOptimizer
    return by(model, config, head_factor)
