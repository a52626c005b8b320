"""``NetworkCopy``: the network and optimizer of a run on one device, apart from the training's own."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.models.registry import build_model
from labkit.optim.sgd import SGD
from labkit.transfer.freezing import Freezing

__all__ = ["NetworkCopy", "state_variables", "variable_names"]


def state_variables(model: Any, optimizer: SGD) -> list[Any]:
    """Return everything that a step changes: weights, moving averages, then velocities."""
    return [*(weight.value for weight in model.weights), *optimizer.velocities]


def variable_names(model: Any) -> list[tuple[str, str]]:
    """Return the layer's name and the variable's, such as ``velocity of kernel``, of ``state_variables``."""
    owners = {id(weight): layer.name for layer in model.layers for weight in layer.weights}
    names = [(owners.get(id(weight), ""), weight.name) for weight in model.weights]
    return names + [
        (owners.get(id(weight), ""), f"velocity of {weight.name}") for weight in model.trainable_variables
    ]


class NetworkCopy:
    """A network of the same variables as a training's, on the default device and under no strategy.

    Args:
        config: the run's configuration, which a session could be made from.
        manifest: the prepared data set.
        data_format: ``channels_last`` or ``channels_first``.
    """

    def __init__(self, config: Config, manifest: Manifest, data_format: str) -> None:
        self.model = build_model(
            config.model,
            num_classes=manifest.num_classes,
            image_shape=manifest.image_shape,
            data_format=data_format,
            seed=config.run.seed,
        )
        self.freezing = Freezing(self.model, config.transfer)
        self.optimizer = SGD(self.model, config.optimizer, config.transfer.head_learning_rate_factor)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    def load(self, state: Sequence[Any], step: int) -> None:
        """Take over a state: the values of ``state_variables`` after ``step`` steps."""
        variables = state_variables(self.model, self.optimizer)
        for variable, value in zip(variables, state, strict=True):
            variable.assign(value)
        self.step.assign(step)

    def checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint that a session of the run can restore."""
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, step=self.step)
