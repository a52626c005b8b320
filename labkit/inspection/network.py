"""``NetworkCopy``: the network and optimizer of a run on one device, apart from the training's own."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import input_shape
from labkit.models.registry import build_model
from labkit.optim.moving_average import MovingAverage
from labkit.optim.optimizer import Optimizer
from labkit.optim.registry import make_optimizer
from labkit.transfer.freezing import Freezing

__all__ = ["NetworkCopy", "state_variables", "variable_names"]


def state_variables(model: Any, optimizer: Optimizer, average: MovingAverage | None = None) -> list[Any]:
    """Return everything that a step changes: weights, moving statistics, optimizer's state, averages."""
    averaged = [] if average is None else average.averaged.weights
    weights = [weight.value for weight in model.weights]
    return [*weights, *optimizer.state, *(weight.value for weight in averaged)]


def variable_names(
    model: Any, optimizer: Optimizer, average: MovingAverage | None = None
) -> list[tuple[str, str]]:
    """Return the layer's name and the variable's, such as ``velocity of kernel``, of ``state_variables``."""
    owners = {id(weight): layer.name for layer in model.layers for weight in layer.weights}

    def named(weights: Any, prefix: str = "") -> list[tuple[str, str]]:
        return [(owners.get(id(weight), ""), f"{prefix}{weight.name}") for weight in weights]

    names = named(model.weights)
    for slot in optimizer.slots:
        names += named(model.trainable_variables, f"{slot} of ")
    names += [("", counter.name) for counter in optimizer.counters]
    return names + (named(model.weights, "average of ") if average is not None else [])


class NetworkCopy:
    """A network of the same variables as a training's, on the default device and under no strategy.

    Args:
        config: the run's configuration, which a network could be made from.
        manifest: the prepared data set.
        data_format: ``channels_last`` or ``channels_first``.
    """

    def __init__(self, config: Config, manifest: Manifest, data_format: str) -> None:
        def network() -> Any:
            return build_model(
                config.model,
                num_classes=manifest.num_classes,
                image_shape=input_shape(manifest, config.data),
                data_format=data_format,
                seed=config.run.seed,
            )

        self.model = network()
        self.freezing = Freezing(self.model, config.transfer)
        factor = config.transfer.head_learning_rate_factor
        self.optimizer = make_optimizer(self.model, config.optimizer, factor)
        decay = config.optimizer.ema_decay
        self.average = MovingAverage(self.model, network(), decay) if decay else None
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def load(self, state: Sequence[Any], step: int) -> None:
        """Take over a state: the values of ``state_variables`` after ``step`` steps."""
        variables = state_variables(self.model, self.optimizer, self.average)
        for variable, value in zip(variables, state, strict=True):
            variable.assign(value)
        self.step.assign(step)

    def checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint that the run's network can restore."""
        more = {} if self.average is None else {"averaged": self.average.averaged}
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, step=self.step, **more)
