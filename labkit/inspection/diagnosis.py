"""``diagnose``: one forward and backward pass on one device, with a look at every tensor on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.config import Config
from labkit.data.batch import StepBatch
from labkit.models.freezing import frozen_norms, trained_indices
from labkit.models.layers import dropout_draws, recorded_batch_statistics, statistics_of
from labkit.models.variants import shrunk, with_layer_outputs
from labkit.optim.network import TrainedNetwork, variable_names

LossPerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# Operations that only hand on what others made; the last one hands on several tensors.
_PASSING_ON = ("Identity", "Cast", "Reshape", "Pack", "EnsureShape", "IdentityN")


@dataclass(frozen=True)
class NonFinite:
    """The first tensor of a step that has a NaN or an Infinity.

    ``phase``: ``state`` (the step began with it), ``forward``, ``backward`` or ``update``. ``value``: ``NaN``
    or ``Infinity``. ``tensor``: what it is, such as ``output``, ``gradient of kernel`` or ``kernel``.
    ``layer``: its layer, empty for images and loss; ``layer_type``: the layer's class. ``operation``: the
    type of the TensorFlow operation that made it; empty where it isn't known. ``replica``: the number of the
    replica, from 0, whose part of the batch shows it.
    """

    phase: str
    value: str
    tensor: str
    layer: str = ""
    layer_type: str = ""
    operation: str = ""
    replica: int = 0

    def sentence(self, num_replicas: int = 1) -> str:
        """Return what was found, in words."""
        where = {
            "state": "in the state before the step",
            "forward": "in the forward pass",
            "backward": "in the backward pass",
            "update": "in the update",
        }[self.phase]
        layer = f" of {self.layer} ({self.layer_type})" if self.layer else ""
        operation = f", made by the operation {self.operation}" if self.operation else ""
        replica = f", on replica {self.replica}" if num_replicas > 1 and self.phase != "update" else ""
        return f"the first {self.value} is {where}, in the {self.tensor}{layer}{operation}{replica}"


@dataclass(frozen=True)
class Diagnosis:
    """A forward and backward pass of one batch.

    ``losses``: float32 [n], of each example. ``logits``: float32 [n, classes]. ``gradient_norms``: the
    Euclidean norm of the gradient of each trained layer's weights, by the layer's name, from the first layer
    to the last. ``first``: the first tensor that isn't finite, or None.
    """

    losses: NDArray[np.float32]
    logits: NDArray[np.float32]
    gradient_norms: dict[str, float]
    first: NonFinite | None


def diagnose_step(
    network: TrainedNetwork,
    batch: StepBatch,
    config: Config,
    *,
    num_replicas: int,
    loss: Any,
    before: Sequence[Any],
    after: Sequence[Any],
) -> tuple[Diagnosis, NonFinite | None]:
    """Make the forward and backward pass of a training step again; find its first tensor that isn't finite.

    Args:
        network: in the state before the step.
        batch: of the step; its images not resized.
        config: of the run.
        num_replicas: that shared the batch.
        loss: the run's, with ``of_training`` (``labkit.training.losses``).
        before, after: the values of ``state_variables`` before and after the step.
    """
    smoothing, parts = config.optimizer.label_smoothing, config.data.parts_of_replica
    diagnosis = diagnose(
        network,
        batch.standardized,
        batch.targets,
        step_index=batch.step - 1,
        per_example=lambda labels, logits: loss.of_training(labels, logits, smoothing),
        # With synchronized batch normalization, the statistics are those of the whole batch.
        num_slices=parts * (1 if config.model.sync_batch_norm else num_replicas),
        image_size=config.data.image_size_at(batch.step - 1, config.run.train_steps),
    )
    if diagnosis.first is not None:
        its = replace(diagnosis.first, replica=diagnosis.first.replica // parts)
        diagnosis = replace(diagnosis, first=its)
    first = _first_of_state(network, before, "state") or diagnosis.first
    return diagnosis, first or _first_of_state(network, after, "update")


def diagnose(
    network: TrainedNetwork,
    images: NDArray[np.float32],
    labels: NDArray[Any],
    *,
    step_index: int,
    per_example: LossPerExample,
    num_slices: int = 1,
    image_size: int | None = None,
) -> Diagnosis:
    """Make the forward and backward pass of a batch, and look for the first tensor that isn't finite.

    Each replica of a training normalizes its part of the batch by that part's own statistics. With
    ``num_slices`` the parts are computed one after the other. Nothing is updated.

    Args:
        network: in the state before the step.
        images: standardized, float32 [n, height, width, channels], not yet resized.
        labels: int [n] or [n, classes], or probabilities float32 [n, classes].
        step_index: from 0; decides which layers are frozen, and what dropout sets to zero.
        per_example: (labels, logits) to the loss of each example.
        num_slices: of the batch, one for each replica.
        image_size: side that the images are resized to, in pixels; None: they aren't.
    """
    one = _Pass(network, per_example, len(images), step_index, image_size)
    run = tf.function(one, reduce_retracing=True, autograph=False)
    parts = list(zip(np.split(images, num_slices), np.split(labels, num_slices), strict=True))
    size = len(images) // num_slices
    found = [
        run(tf.constant(part), tf.constant(targets), tf.constant(number * size))
        for number, (part, targets) in enumerate(parts)
    ]
    first = one.first_of(np.stack([result["flags"] for result in found]))
    gradients = [sum(values) for values in zip(*(result["gradients"] for result in found), strict=True)]
    return Diagnosis(
        np.concatenate([result["losses"] for result in found]),
        np.concatenate([result["logits"] for result in found]),
        one.norms([gradient.numpy() for gradient in gradients]),
        first,
    )


def _first_of_state(network: TrainedNetwork, values: Sequence[Any], phase: str) -> NonFinite | None:
    types = {layer.name: type(layer).__name__ for layer in network.model.layers}
    names = variable_names(network.model, network.optimizer, network.average)
    for (layer, name), value in zip(names, values, strict=True):
        found = _kind(np.asarray(value).astype(np.float64))
        if found:
            return NonFinite(phase, found, name, layer, types.get(layer, ""))
    return None


class _Pass:
    """The pass of one slice, as a function to compile, and the names of the tensors that it looks at."""

    def __init__(self, network, per_example, batch_size: int, step_index: int, image_size: int | None):
        self.model, self.per_example = network.model, per_example
        self.batch_size, self.image_size = batch_size, image_size
        self.step_index = step_index
        frozen = network.freezing.at(step_index)
        self.outputs_of = with_layer_outputs(self.model, image_size)
        self.held_norms = frozen_norms(self.model, frozen)
        variables = [self.model.trainable_variables[index] for index in trained_indices(self.model, frozen)]
        owners = {id(weight): layer.name for layer in self.model.layers for weight in layer.weights}
        self.weights = [variable.value for variable in variables]
        self.weight_names = [(owners[id(variable)], variable.name) for variable in variables]
        self.types = {layer.name: type(layer).__name__ for layer in self.model.layers}
        self.looked_at: list[tuple[str, str, str, str]] = []  # phase, layer, tensor, operation

    def __call__(self, images: tf.Tensor, labels: tf.Tensor, first: tf.Tensor) -> dict[str, Any]:
        tape = tf.GradientTape(watch_accessed_variables=False)
        draws = dropout_draws(self.step_index, first, self.batch_size)
        with tape, draws, recorded_batch_statistics(self.held_norms) as recorded:
            tape.watch(self.weights)
            shown = images if self.image_size is None else shrunk(images, self.image_size)
            outputs = self.outputs_of(shown, training=True)
            logits = outputs[next(reversed(outputs))]
            losses = self.per_example(labels, logits)
            loss = tf.reduce_sum(losses) / self.batch_size
        names = list(outputs)
        of_outputs, of_weights = tape.gradient(
            loss,
            [[outputs[name] for name in names], self.weights],
            unconnected_gradients=tf.UnconnectedGradients.NONE,
        )
        looked_at = [("forward", "", "images", shown)]
        statistics = statistics_of(self.model, recorded)
        for name in names:
            for what, value in zip(("mean", "variance"), statistics.get(name, ()), strict=False):
                looked_at.append(("forward", name, f"batch {what}", value))
            looked_at.append(("forward", name, "output", outputs[name]))
        looked_at += [("forward", "", "loss of an example", losses), ("forward", "", "loss", loss)]
        for number in reversed(range(len(names))):
            name = names[number]
            if of_outputs[number] is not None:
                looked_at.append(("backward", name, "gradient of the output", of_outputs[number]))
            looked_at += [
                ("backward", name, f"gradient of {weight}", gradient)
                for (layer, weight), gradient in zip(self.weight_names, of_weights, strict=True)
                if layer == name and gradient is not None
            ]
        self.looked_at = [(*names, _operation(value)) for *names, value in looked_at]  # type: ignore[misc]
        gradients = [
            tf.zeros_like(weight) if gradient is None else gradient
            for weight, gradient in zip(self.weights, of_weights, strict=True)
        ]
        flags = tf.stack([_flags(value) for *_, value in looked_at])
        return {
            "losses": losses,
            "logits": tf.cast(logits, tf.float32),
            "gradients": gradients,
            "flags": flags,
        }

    def first_of(self, flags: NDArray[np.bool_]) -> NonFinite | None:
        """Return the first tensor that isn't finite by its flags, [replicas, tensors, (NaN, Infinity)].

        It is the earliest of all replicas, which compute at the same time; of those equally early, replica 0.
        """
        found = np.argwhere(flags.any(axis=2).T)  # rows of (tensor, replica), in order
        if not len(found):
            return None
        index, replica = found[0].tolist()
        phase, layer, tensor, operation = self.looked_at[index]
        value = "NaN" if flags[replica, index, 0] else "Infinity"
        return NonFinite(phase, value, tensor, layer, self.types.get(layer, ""), operation, replica)

    def norms(self, gradients: list[NDArray[Any]]) -> dict[str, float]:
        """Return the norm of each layer's gradient, by the layer's name."""
        squares: dict[str, float] = {}
        for (layer, _), gradient in zip(self.weight_names, gradients, strict=True):
            squares[layer] = squares.get(layer, 0.0) + float(np.sum(np.square(gradient.astype(np.float64))))
        return {layer: float(np.sqrt(total)) for layer, total in squares.items()}


def _operation(value: Any) -> str:
    """Return the type of the operation that makes a tensor of a graph.

    Empty where it comes from outside, and where it is a call of what XLA compiled, which is a whole layer.
    """
    while value.op.type in _PASSING_ON:
        value = value.op.inputs[value.value_index if value.op.type == "IdentityN" else 0]
    outside = value.op.type == "Placeholder" or value.op.type.endswith("PartitionedCall")
    return "" if outside else value.op.type


def _flags(value: tf.Tensor) -> tf.Tensor:
    """Return whether a tensor has a NaN and whether it has an Infinity, bool [2]."""
    if value.dtype not in (tf.float32, tf.float64):
        value = tf.cast(value, tf.float32)
    return tf.stack([tf.reduce_any(tf.math.is_nan(value)), tf.reduce_any(tf.math.is_inf(value))])


def _kind(value: NDArray[np.float64]) -> str:
    if np.isnan(value).any():
        return "NaN"
    return "Infinity" if np.isinf(value).any() else ""
