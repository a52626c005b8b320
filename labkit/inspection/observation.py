"""``Observation``: what an inspected step showed of each layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from labkit.inspection.buckets import quantiles
from labkit.inspection.observer import observed_layers
from labkit.models.stages import layers_with_weights
from labkit.transfer.freezing import Frozen, trained_indices

__all__ = ["Observation", "read_observation"]

Counts = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Observation:
    """Figures of the layers in one step. The lists are as long as ``layers``.

    Attributes:
        layers: names, in the order of the forward pass.
        activation_mean, activation_std: of all outputs for the global batch.
        zero_fraction: fraction of the outputs that are 0.
        gradient_norm: Euclidean norm of the gradient of the layer's weights, before weight decay and
            clipping; None where the step trains none of its weights.
        update_ratio: Euclidean norm of the change of the layer's trained weights, divided by that of the
            weights before the step; None where the step trains none.
        activation_counts, gradient_counts, weight_counts: bucket counts (``labkit.inspection.buckets``) by
            layer name or path of the weight, each of a sample of at most ``SAMPLE_SIZE`` values.
        activation_quantiles, gradient_quantiles, weight_quantiles: the values at ``LEVELS``
            (``labkit.run_directory.layers``) of each layer's outputs, of its trained weights' gradients, and
            of its weights that can be trained; None where there are none.
    """

    layers: list[str]
    activation_mean: list[float]
    activation_std: list[float]
    zero_fraction: list[float]
    gradient_norm: list[float | None]
    update_ratio: list[float | None]
    activation_counts: Counts
    gradient_counts: Counts
    weight_counts: Counts
    activation_quantiles: list[list[float] | None]
    gradient_quantiles: list[list[float] | None]
    weight_quantiles: list[list[float] | None]

    def by_layer(self) -> dict[str, list[Any]]:
        """Return the figures of the layers, without the bucket counts and quantiles."""
        names = (
            "layers", "activation_mean", "activation_std", "zero_fraction", "gradient_norm", "update_ratio",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def read_observation(model: keras.Model, frozen: Frozen, tensors: Mapping[str, Any]) -> Observation:
    """Return what ``StepObserver.tensors`` say.

    Args:
        model: the network.
        frozen: the layers that the step didn't train.
        tensors: their values, as NumPy arrays or eager tensors.
    """
    values = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    layers = observed_layers(model)
    trained = [model.trainable_variables[index] for index in trained_indices(model, frozen)]
    of_layer = {id(weight): layer.name for layer in layers_with_weights(model) for weight in layer.weights}
    places = [of_layer[id(weight)] for weight in trained]
    with np.errstate(all="ignore"):  # NaN and Infinity are shown as they are
        count, total, squares, zeros = values["activations"][:, :4].T
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        norms = _norms(places, values["gradients"][:, 0])
        before, changes = (_norms(places, squares) for squares in values["updates"].T)
        ratios = {name: float(np.divide(changes[name], before[name])) for name in before}
    return Observation(
        layers=layers,
        activation_mean=mean.tolist(),
        activation_std=std.tolist(),
        zero_fraction=(zeros / count).tolist(),
        gradient_norm=[norms.get(name) for name in layers],
        update_ratio=[ratios.get(name) for name in layers],
        activation_counts=dict(zip(layers, values["activations"][:, 4:], strict=True)),
        gradient_counts=_by_path(trained, values["gradients"][:, 1:]),
        weight_counts=_by_path(model.weights, values["weights"]),
        activation_quantiles=[quantiles(counts) for counts in values["activations"][:, 4:]],
        gradient_quantiles=_quantiles_of(layers, places, trained, values["gradients"][:, 1:]),
        weight_quantiles=_quantiles_of(
            layers,
            [of_layer[id(weight)] if weight.trainable else None for weight in model.weights],
            model.weights,
            values["weights"],
        ),
    )


def _quantiles_of(
    layers: Sequence[str],
    places: Sequence[str | None],
    weights: Sequence[keras.Variable],
    counts: NDArray[np.float64],
) -> list[list[float] | None]:
    """Return the quantiles of each layer's weights together; each weight counts by its size."""
    together: Counts = {}
    for place, weight, row in zip(places, weights, counts, strict=True):
        if place is not None:
            scaled = row * (float(np.prod(weight.shape)) / max(row.sum(), 1.0))
            together[place] = together.get(place, 0.0) + scaled
    return [quantiles(together[name]) if name in together else None for name in layers]


def _norms(places: Sequence[str], squares: NDArray[np.float64]) -> dict[str, float]:
    """Return the norm of each layer's weights together, from the sums of squares of the weights."""
    of_weights = np.array(places)
    return {name: float(np.sqrt(squares[of_weights == name].sum())) for name in dict.fromkeys(places)}


def _by_path(weights: Sequence[keras.Variable], counts: NDArray[np.float64]) -> Counts:
    return {weight.path: row for weight, row in zip(weights, counts, strict=True)}
