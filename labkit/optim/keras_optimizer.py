"""Any optimizer of Keras, or of a class of one's own, inside labkit's step.

It gets the gradient of the global batch, which labkit has summed, clipped and given its weight decay, and the
learning rate of the step. What it remembers is in checkpoints, as for labkit's own optimizers.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.config.arguments import arguments_of
from labkit.config.optimizer import KERAS_OPTIMIZERS, LABKITS, LEFT_TO_LABKIT
from labkit.errors import InputError, short
from labkit.optim.optimizer import Optimizer
from labkit.parts.code import first_line, named_object
from labkit.startup.tf_compat import update_by_keras


class KerasOptimizer(Optimizer):
    """Updates weights as ``keras.optimizers.Optimizer.apply`` does.

    Keras counts updates once for all weights, so the count goes on for those that are frozen. Arguments, and
    what differs for some weights: see ``Optimizer``.

    Raises InputError if the optimizer can't be made of the configuration.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "keras_optimizer")
        self._make = lambda: _built(config, model.trainable_variables)
        optimizer = self._make()
        # In a function: as an attribute, checkpoints would hold its variables a second time.
        self._kept = lambda: optimizer
        self.remembered = _remembered(optimizer)

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """None: what it remembers of which weight only the optimizer knows."""
        return {}

    @property
    def counters(self) -> list[tf.Variable]:
        """All that it remembers."""
        return list(self.remembered)

    def begin(self) -> None:
        """Start anew, from the weights as they are: some optimizers begin with a copy of them."""
        for variable, value in zip(self.remembered, _remembered(self._make()), strict=True):
            variable.assign(tf.convert_to_tensor(value))

    def apply(
        self, strategy, gradients, learning_rate: tf.Tensor, indices: Sequence[int] | None = None
    ) -> list[Any]:
        """Update the weights as ``Optimizer.apply`` does. The operations aren't returned."""
        indices = range(len(self._variables)) if indices is None else indices
        optimizer = self._kept()
        with tf.name_scope("optimizer"):
            scale = self._clip_factor(strategy, gradients)

            def update_each(gradients, variables, learning_rate):
                for index, variable, gradient in zip(indices, variables, gradients, strict=True):
                    arguments = ((), (), gradient, learning_rate, scale, index)
                    strategy.extended.update(variable, self._update, args=arguments, group=False)

            variables = [self._variables[index] for index in indices]
            update_by_keras(optimizer, gradients, variables, learning_rate, update_each)
            optimizer.iterations.assign_add(1)
        return []

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        learning_rate *= self._factors[index]
        decay = self._decay[index]
        if decay and self._config.weight_decay_mode == "l2":
            gradient = gradient + decay * variable
        elif decay:
            variable.assign_sub(learning_rate * decay * variable)
        self._kept().update_step(gradient, variable, learning_rate)


def _remembered(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """Return the variables that updates change; the learning rate is the step's."""
    return [variable.value for variable in optimizer.variables if variable is not optimizer.learning_rate]


def check_keras_optimizer(config: OptimizerConfig) -> None:
    """Raise InputError if the configuration's optimizer of Keras can't be made, or can't make an update.

    Call it outside of a strategy's scope, before a training writes anything.
    """
    if config.optimizer in LABKITS:
        return
    weights = [keras.Variable(tf.ones(shape), name="tried") for shape in ([3, 2], [2])]
    optimizer = _built(config, weights)
    try:
        for weight in weights:
            optimizer.update_step(tf.ones(weight.shape), weight.value, tf.constant(1e-3))
    except Exception as error:
        raise InputError(
            f"--optimizer {config.optimizer} can't make an update: {first_line(error)}; its arguments are "
            f"{config.optimizer_arguments or 'those of its own'}"
        ) from None


def _built(config: OptimizerConfig, weights: list[keras.Variable]) -> keras.optimizers.Optimizer:
    """Return the configuration's optimizer for some weights. Raises InputError."""
    flag, arguments = f"--optimizer {config.optimizer}", arguments_of(config.optimizer_arguments)
    if config.optimizer in KERAS_OPTIMIZERS:
        make = getattr(keras.optimizers, KERAS_OPTIMIZERS[config.optimizer])
        arguments = {"weight_decay": None} | arguments
    else:
        make = named_object("--optimizer", config.optimizer)
    if not callable(make):
        raise InputError(f"{flag} is {short(make)}; allowed: a class of optimizers, or a function")
    try:
        parameters = inspect.signature(make).parameters.values()
        if any(one.name == "learning_rate" or one.kind == one.VAR_KEYWORD for one in parameters):
            arguments = {"learning_rate": config.learning_rate} | arguments
        optimizer = make(**arguments)
        _check(flag, optimizer, config)
        optimizer.build(weights)
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise InputError(f"{flag} failed, called with ({given}): {first_line(error)}") from None
    return optimizer


def _check(flag: str, optimizer: Any, config: OptimizerConfig) -> None:
    """Raise InputError for what is no optimizer, and for one with something that labkit does instead."""
    wrappers = (keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, wrappers):
        kind = "nothing" if optimizer is None else f"an object of {type(optimizer).__name__}"
        raise InputError(f"{flag} returned {kind}; allowed: a Keras optimizer that wraps no others")
    for name, instead in LEFT_TO_LABKIT.items():
        if (value := getattr(optimizer, name)) not in (None, False):
            raise InputError(f"{flag} has {name}={value!r}, which labkit does instead; {instead}")
    rate = optimizer.get_config()["learning_rate"]
    if not isinstance(rate, float):
        raise InputError(f"{flag} has a schedule of its own; give a number and --learning-rate-schedule")
    if not math.isclose(rate, config.learning_rate, rel_tol=1e-6):
        raise InputError(
            f"{flag} has a learning rate of {rate:.6g}, and --learning-rate is {config.learning_rate}; give "
            f"--learning-rate {rate:.6g}, or let it take learning_rate as an argument"
        )
