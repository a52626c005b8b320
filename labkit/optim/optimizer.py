"""What all optimizers share: variables of any ``tf.distribute`` strategy, decay, clipping, rates."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.errors import InputError
from labkit.models.freezing import HEAD, layers_with_weights
from labkit.models.layers import norms_of
from labkit.startup.tf_compat import all_layers


class _Untracked:
    """Holds variables of the model. In a list of the optimizer, checkpoints would hold them a second time."""

    def __init__(self, variables: list[tf.Variable]) -> None:
        self.variables = variables


class Optimizer(tf.Module):
    """Updates the trainable variables of a model. Clipping applies to the gradient of the loss without decay.

    The learning rate differs for some weights. For the offsets (beta) of batch normalization, it is
    multiplied by ``norm_bias_learning_rate_factor`` (Jordan, 2024, arXiv:2404.00498, section 3.4) and the
    decay is divided by it, so that their product is the same for all weights. For the head, the learning rate
    is multiplied by ``head_factor``.

    Create it inside ``strategy.scope()``, before a checkpoint is restored.

    Args:
        model: the model whose trainable variables are updated.
        config: the optimizer's settings.
        head_factor: factor of the learning rate for the layer that computes the logits.
        name: of the optimizer.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float, name: str) -> None:
        super().__init__(name=name)
        self._config = config
        self._updated = _Untracked([variable.value for variable in model.trainable_variables])
        self._paths = [variable.path for variable in model.trainable_variables]
        offsets = {id(layer.beta) for layer in norms_of(model).values()}
        head = {id(weight) for layer in model.layers if layer.name == HEAD for weight in layer.weights}
        decaying = {id(variable) for variable in _decaying(model, config)}
        self._factors, self._decay = [], []
        self._adds_decay = config.weight_decay_mode == "l2"  # to the gradient
        for variable in model.trainable_variables:
            factor, decay = 1.0, config.weight_decay if id(variable) in decaying else 0.0
            if id(variable) in offsets:
                factor = config.norm_bias_learning_rate_factor
                decay = decay / factor if factor else decay
            elif id(variable) in head:
                factor = head_factor
            self._factors.append(factor)
            self._decay.append(decay)

    @property
    def _variables(self) -> list[tf.Variable]:
        return self._updated.variables

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """What the optimizer remembers for each weight, by name; each list is in the order of the weights."""
        raise NotImplementedError

    @property
    def counters(self) -> list[tf.Variable]:
        """What it remembers beside that."""
        return []

    @property
    def state(self) -> list[tf.Variable]:
        """All variables that a step changes: those of ``slots``, then ``counters``."""
        return [*(slot for slots in self.slots.values() for slot in slots), *self.counters]

    def begin(self) -> None:
        """Start anew with initial weights that have been loaded."""

    def make_slots(self, name: str) -> list[tf.Variable]:
        """Return a variable of zeros for each weight."""
        slots = []
        for index, variable in enumerate(self._variables):
            # On the same parameter server as its weight, because one operation updates both.
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                zeros = tf.zeros(variable.shape, variable.dtype)
                slots.append(tf.Variable(zeros, trainable=False, name=f"{name}/{self._paths[index]}"))
        return slots

    def apply(
        self, strategy, gradients, learning_rate: tf.Tensor, indices: Sequence[int] | None = None
    ) -> list[Any]:
        """Update the weights and return the operations.

        Call it in cross-replica context, inside a ``tf.function``.

        Args:
            strategy: the strategy that owns the variables.
            gradients: one gradient for each updated variable, already summed over the replicas.
            learning_rate: float32 scalar.
            indices: which of the model's trainable variables to update; None updates all. Other variables and
                their slots do not change.
        """
        indices = range(len(self._variables)) if indices is None else indices
        with tf.name_scope("optimizer"):
            scale = self._clip_factor(strategy, gradients)
            if self.counters:
                self._count(strategy, indices)
            every = list(zip(*self.slots.values(), strict=True))
            return [
                strategy.extended.update(
                    self._variables[index],
                    self._update,
                    args=(every[index], self.counters, gradient, learning_rate, scale, index),
                    group=False,
                )
                for index, gradient in zip(indices, gradients, strict=True)
            ]

    def _count(self, strategy: Any, indices: Sequence[int]) -> None:
        """Update the counters before an update of the weights at ``indices``."""
        raise NotImplementedError

    def _clip_factor(self, strategy, gradients) -> tf.Tensor | None:
        """Return the factor that clips the gradients' norm (Pascanu et al., 2013); None without clipping."""
        if self._config.gradient_clip_norm is None:
            return None
        local = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        return self._config.gradient_clip_norm / tf.maximum(
            tf.linalg.global_norm(local), self._config.gradient_clip_norm
        )

    def _update(self, variable, slots, counters, gradient, learning_rate, scale, index: int):
        with tf.name_scope(self._paths[index]):
            learning_rate = tf.cast(learning_rate, variable.dtype)
            if self._factors[index] != 1.0:
                learning_rate *= self._factors[index]
            gradient = gradient if scale is None else gradient * scale
            if (decay := self._decay[index]) and self._adds_decay:
                gradient = gradient + decay * variable
            elif decay:
                variable.assign_sub(learning_rate * decay * variable)
            return self._step(variable, slots, counters, gradient, learning_rate, index)

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        """Update one weight by a gradient that is clipped and has its decay. Returns the operation."""
        raise NotImplementedError


def check_weight_decay(model: keras.Model, config: OptimizerConfig) -> None:
    """Raise InputError if weights were to decay that the network doesn't have."""
    if config.weight_decay and not _decaying(model, config):
        raise InputError(
            f"--weight-decay-of is {config.weight_decay_of!r}, but {model.name} has no dense layer before "
            "the logits; allowed: all, kernels"
        )


_NO_KERNELS = ("bias", "gamma", "beta", "alpha")  # attributes of layers


def _decaying(model: keras.Model, config: OptimizerConfig) -> list[keras.Variable]:
    """Return the trainable variables that ``weight_decay_of`` names."""
    if config.weight_decay_of == "all":
        return list(model.trainable_variables)
    if config.weight_decay_of == "kernels":
        # Those of attention and of a PReLU may have several axes, too.
        others = {id(getattr(layer, name, None)) for layer in all_layers(model) for name in _NO_KERNELS}
        matrices = (variable for variable in model.trainable_variables if len(variable.shape) > 1)
        return [variable for variable in matrices if id(variable) not in others]
    return [
        layer.kernel
        for layer in layers_with_weights(model)
        if isinstance(layer, keras.layers.Dense) and layer.name != HEAD and layer.kernel.trainable
    ]
