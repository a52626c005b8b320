"""All that a training changes: the weights of a network, the optimizer's state, averages of the weights."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.config import Config, fields_by_name
from labkit.data.manifest import Manifest
from labkit.data.network_input import input_shape
from labkit.errors import InputError
from labkit.models.freezing import HEAD, Freezing
from labkit.models.registry import build_model, in_checkpoints
from labkit.models.variants import check_image_sizes
from labkit.optim.optimizer import Optimizer, check_weight_decay
from labkit.optim.optimizers import check_muon, make_optimizer


class MovingAverage:
    """Keeps the weights of a second network at the moving average of the first one's.

    After the update of step n (from 1), each weight a of ``averaged`` moves towards the weight w of ``model``
    by a = a - (1 - d) (a - w), where d = min(decay, (1 + n) / (10 + n)), as ``ExponentialMovingAverage`` of
    TensorFlow 1 does with ``num_updates``. The average of the first steps is therefore not dominated by the
    initial weights (averaging: Polyak & Juditsky, 1992). Moving mean and variance of batch normalization are
    averaged like weights, as in TensorFlow's EfficientNet (2019): they then belong to the averaged kernels.

    Args:
        model: the network that is trained.
        averaged: another network of the same configuration, with variables under the same strategy.
        decay: from 0 and below 1.
    """

    def __init__(self, model: keras.Model, averaged: keras.Model, decay: float) -> None:
        self.averaged = averaged
        self._decay = decay
        self._pairs = [
            (average.value, weight.value)
            for average, weight in zip(averaged.weights, model.weights, strict=True)
        ]

    def begin(self) -> None:
        """Set the averages to the weights as they are."""
        for average, weight in self._pairs:
            average.assign(tf.convert_to_tensor(weight))

    def update(self, strategy: Any, step: tf.Tensor) -> None:
        """Move the averages, in cross-replica context, inside a ``tf.function``.

        Args:
            strategy: owns the variables.
            step: steps completed before this one, an integer scalar.
        """
        number = tf.cast(step, tf.float32) + 1.0
        share = 1.0 - tf.minimum(self._decay, (1.0 + number) / (10.0 + number))

        def move(average, weight, share):
            return average.assign_sub(tf.cast(share, average.dtype) * (average - weight))

        with tf.name_scope("average_of_weights"):
            for average, weight in self._pairs:
                strategy.extended.update(average, move, args=(weight, share), group=False)


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


class TrainedNetwork:
    """A network with its optimizer, under the strategy in whose scope it is made.

    Args:
        config: the run's configuration; it names the data set.
        manifest: the prepared data set.
        data_format: ``channels_last`` or ``channels_first``.

    Attributes:
        model, optimizer: the network and its optimizer. The initial weights depend on the seed alone.
        freezing: decides which layers a step trains.
        average: the moving average of the weights, if the run keeps one.
        step: counts completed steps.

    Raises InputError as ``build_model_to_train`` does.
    """

    def __init__(self, config: Config, manifest: Manifest, data_format: str) -> None:
        self.config, self.manifest, self.data_format = config, manifest, data_format
        self.model, self.freezing = build_model_to_train(config, manifest, data_format)
        factor = config.transfer.head_learning_rate_factor
        self.optimizer = make_optimizer(self.model, config.optimizer, factor)
        self.average: MovingAverage | None = None
        if decay := config.optimizer.ema_decay:
            self.average = MovingAverage(self.model, _built(config, manifest, data_format), decay)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    @property
    def state_variables(self) -> list[Any]:
        """Everything that a step changes: see ``state_variables``."""
        return state_variables(self.model, self.optimizer, self.average)

    def load(self, state: Sequence[Any], step: int) -> None:
        """Take over a state: the values of ``state_variables`` after ``step`` steps."""
        for variable, value in zip(self.state_variables, state, strict=True):
            variable.assign(value)
        self.step.assign(step)

    def checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint of all the state that training resumes from."""
        networks = {"model": self.model}
        if self.average is not None:
            networks["averaged"] = self.average.averaged
        held = {name: in_checkpoints(self.config.model, model) for name, model in networks.items()}
        return tf.train.Checkpoint(optimizer=self.optimizer, step=self.step, **held)


def build_model_to_train(
    config: Config, manifest: Manifest, data_format: str
) -> tuple[keras.Model, Freezing]:
    """Build the model, and determine which layers are frozen at which steps.

    Raises InputError for errors that show only in the network's layers: it can't take images of a configured
    size; the layers to freeze don't exist, or are all layers; a frozen head has a learning-rate factor; no
    weight would decay; or ``check_muon`` refuses the network.
    """
    model = _built(config, manifest, data_format)
    if not model.trainable_weights:
        raise InputError(f"{model.name} has no weights that can be trained")
    if HEAD not in {layer.name for layer in model.layers}:
        for name in ("head_learning_rate_factor", "weight_decay_of"):
            info, value = fields_by_name()[name], config.flat()[name]
            if value not in (info.default, "kernels"):
                raise InputError(
                    f"{info.flag} is {value}, but {model.name} has no layer called {HEAD!r}; call the layer "
                    "so that gives the logits"
                )
    check_weight_decay(model, config.optimizer)
    check_image_sizes(config.data.image_sizes, model)
    freezing = Freezing(model, config.transfer)
    factor = config.transfer.head_learning_rate_factor
    if factor != 1 and HEAD in freezing.at(config.run.train_steps - 1):
        raise InputError(
            f"--head-learning-rate-factor is {factor} with --freeze {config.transfer.freeze!r}, which holds "
            f"{HEAD}, the head of {model.name}, to the end; leave one of them out"
        )
    if config.optimizer.optimizer == "muon":
        check_muon(model, freezing.at(0))
    return model, freezing


def _built(config: Config, manifest: Manifest, data_format: str) -> keras.Model:
    """Return the model with its initial weights."""
    return build_model(
        config.model,
        num_classes=manifest.num_classes,
        image_shape=input_shape(manifest, config.data),
        data_format=data_format,
        seed=config.run.seed,
    )
