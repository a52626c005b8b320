"""``StepObserver`` takes the metrics of layers in a training step; ``Observation`` is what it showed.

Histograms have the same buckets for all values, so that the counts of several replicas can be added. The
buckets are logarithmic, because the gradients of a network range over many orders of magnitude: four for each
power of two from 2**-30 to 2**20, for either sign, and one around zero. Larger values count in the outermost
buckets. NaN and Infinity count in none.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from labkit.models.freezing import Frozen, trained_indices
from labkit.models.variants import with_image_size, with_layer_outputs
from labkit.run_directory.layers import LEVELS

SAMPLE_SIZE = 16384  # values of a histogram at most; its percentiles are then exact to about one in a hundred
_PER_OCTAVE, _SMALLEST, _LARGEST = 4, -30, 20
_SIDE = _PER_OCTAVE * (_LARGEST - _SMALLEST)  # buckets of one sign
NUM_BUCKETS = 2 * _SIDE + 1
_POSITIVE = 2.0 ** (_SMALLEST + np.arange(_SIDE + 1) / _PER_OCTAVE)
EDGES: NDArray[np.float64] = np.concatenate([-_POSITIVE[::-1], _POSITIVE])
SHOWN_BUCKETS = 30  # the number in histograms of ``tf.summary.histogram``


def sample_stride(count: int) -> int:
    """Return the stride that takes about ``SAMPLE_SIZE`` of ``count`` values, and never more.

    It is odd, or with 16 channels it would take values of the same few channels.
    """
    return math.ceil(count / SAMPLE_SIZE) | 1


def bucket_counts(values: tf.Tensor, rows: NDArray[np.int32]) -> tf.Tensor:
    """Return how many values of each row are in each bucket, float64 [rows, NUM_BUCKETS].

    Args:
        values: float tensor. All rows are counted in one operation.
        rows: the row of each value; its shape is that of ``values`` or broadcasts to it. Every row has a
            value.
    """
    values = tf.cast(values, tf.float32)
    exponents = tf.math.log(tf.maximum(tf.abs(values), 2.0 ** (_SMALLEST - 1))) / math.log(2.0)
    sides = tf.clip_by_value(tf.floor((exponents - _SMALLEST) * _PER_OCTAVE) + 1.0, 0.0, float(_SIDE))
    # NaN and Infinity go to one more bucket, which is dropped.
    buckets = tf.where(tf.math.is_finite(values), _SIDE + tf.sign(values) * sides, float(NUM_BUCKETS))
    indices = tf.cast(buckets, tf.int32) + rows * (NUM_BUCKETS + 1)
    num_rows = int(rows.max()) + 1
    size = num_rows * (NUM_BUCKETS + 1)
    with tf.device("CPU:0"):  # on GPUs, TensorFlow refuses to count with --deterministic
        counts = tf.math.bincount(tf.reshape(indices, [-1]), minlength=size, maxlength=size)
    return tf.cast(tf.reshape(counts, [num_rows, NUM_BUCKETS + 1])[:, :NUM_BUCKETS], tf.float64)


def evenly_spaced(counts: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the histogram in buckets of equal width, as TensorBoard shows it; None if nothing was counted.

    Args:
        counts: [NUM_BUCKETS].

    Returns:
        [SHOWN_BUCKETS, 3]: left edge, right edge, and count. A bucket's count is split in proportion to the
        width, so counts aren't whole numbers.
    """
    [used] = np.nonzero(counts)
    if not used.size:
        return None
    edges = np.linspace(EDGES[used[0]], EDGES[used[-1] + 1], SHOWN_BUCKETS + 1)
    below = np.interp(edges, EDGES, np.concatenate([[0.0], np.cumsum(counts)]))
    return np.stack([edges[:-1], edges[1:], np.diff(below)], axis=1)


def quantiles(counts: NDArray[np.float64]) -> list[float] | None:
    """Return the values at ``LEVELS`` with four digits; None if nothing was counted.

    A value is as exact as its bucket is wide, 19 %. What lies within the bucket around zero is 0.

    Args:
        counts: [NUM_BUCKETS].
    """
    [used] = np.nonzero(counts)
    if not used.size:
        return None
    part = slice(used[0], used[-1] + 1)
    below = np.concatenate([[0.0], np.cumsum(counts[part])])
    found = np.interp(np.array(LEVELS) * below[-1], below, EDGES[part.start : part.stop + 1])
    found[np.abs(found) <= _POSITIVE[0]] = 0.0
    return [float(f"{value:.4g}") for value in found.tolist()]


# Their outputs have the values of their inputs.
_MOVES_VALUES = (
    keras.layers.InputLayer,
    keras.layers.Identity,
    keras.layers.Permute,
    keras.layers.Reshape,
    keras.layers.Flatten,
)


def observed_layers(model: keras.Model) -> list[str]:
    """Return the names of the observed layers in the order of the forward pass."""
    return [layer.name for layer in model.operations if not isinstance(layer, _MOVES_VALUES)]


def local_values(variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return the value of each variable on this process's first replica, in cross-replica context."""
    strategy = tf.distribute.get_strategy()
    return [tf.convert_to_tensor(strategy.experimental_local_results(variable)[0]) for variable in variables]


class Unobserved:
    """What a training step asks an observer for; this one observes nothing and adds no operation."""

    tensors: tuple[dict[str, tf.Tensor], ...] = ()

    def network(self, model: keras.Model, image_size: int | None) -> Callable[..., tf.Tensor]:
        """Return what maps images of this size to logits."""
        return model if image_size is None else with_image_size(model, image_size)

    def activations(self) -> Any:
        """Return what this replica's last call of the network showed, for ``update``; in replica context."""
        return ()

    @contextlib.contextmanager
    def update(
        self, strategy: Any, activations: Any, gradients: Sequence[Any], indices: Sequence[int]
    ) -> Iterator[None]:
        """Contain the update of the weights, in cross-replica context.

        Args:
            strategy: owns the variables.
            activations: what ``activations`` returned on each replica.
            gradients: summed over the replicas, before weight decay and clipping.
            indices: which of the model's trainable variables they belong to.
        """
        yield


UNOBSERVED = Unobserved()


class StepObserver(Unobserved):
    """Observes activations, gradients and weights of each layer.

    Everything about activations is a sum over the examples, so that the sums of all replicas are those of the
    global batch. After the step was traced, ``tensors`` has one dict, of float64 tensors of its graph:

    - ``activations`` [layers, 4 + buckets]: of each of ``observed_layers``, the number of outputs, their sum,
      the sum of their squares, how many are zero, and the bucket counts of a sample;
    - ``gradients`` [trained weights, 1 + buckets]: the sum of the squares, and bucket counts;
    - ``updates`` [trained weights, 2]: the sum of squares of the weight before the step, and of its change;
    - ``weights`` [all weights, buckets]: bucket counts after the step.

    Args:
        model: the network, without its change for other image sizes.
        global_batch_size: decides how many values of an example are sampled.
        read: variables to their values on this process's first replica.
    """

    def __init__(
        self,
        model: keras.Model,
        global_batch_size: int,
        read: Callable[[Sequence[tf.Variable]], list[tf.Tensor]] = local_values,
    ) -> None:
        self._model, self._global_batch_size, self._read = model, global_batch_size, read
        self._layers = observed_layers(model)
        # A strategy traces each of its replicas in a thread of its own.
        self._replica = threading.local()

    def network(self, model: keras.Model, image_size: int | None) -> Callable[..., tf.Tensor]:
        inner = with_layer_outputs(model, image_size)

        def network(images: tf.Tensor, training: bool) -> tf.Tensor:
            outputs = self._replica.outputs = inner(images, training=training)
            return outputs[next(reversed(outputs))]

        return network

    def activations(self) -> tf.Tensor:
        outputs = [self._replica.outputs[name] for name in self._layers]
        outputs = [tf.cast(one, tf.float32) if one.dtype.size < 4 else one for one in outputs]
        del self._replica.outputs
        features = [math.prod(values.shape[1:]) for values in outputs]
        # The same values of every example, so that the sample doesn't depend on the number of replicas.
        strides = [sample_stride(number * self._global_batch_size) for number in features]
        samples = [
            tf.reshape(values, [-1, number])[:, ::stride]
            for values, number, stride in zip(outputs, features, strides, strict=True)
        ]
        zero = tf.zeros([], outputs[0].dtype)
        zeros = [tf.cast(tf.equal(values, zero), zero.dtype) for values in outputs]
        count = tf.cast(tf.shape(outputs[0])[0], tf.float64) * np.array(features, np.float64)
        total = tf.cast(tf.stack([tf.reduce_sum(values) for values in outputs]), tf.float64)
        sums = tf.stack([count, total, _sums_of_squares(outputs), _sums_of_squares(zeros)], axis=1)
        counts = bucket_counts(tf.concat(samples, axis=1), _rows([sample.shape[1] for sample in samples]))
        return tf.concat([sums, counts], axis=1)

    @contextlib.contextmanager
    def update(
        self, strategy: Any, activations: Any, gradients: Sequence[Any], indices: Sequence[int]
    ) -> Iterator[None]:
        trained = [self._model.trainable_variables[index] for index in indices]
        before = self._read([weight.value for weight in trained])
        yield
        weights = self._read([weight.value for weight in self._model.weights])
        after = {id(weight): value for weight, value in zip(self._model.weights, weights, strict=True)}
        changes = [after[id(weight)] - old for weight, old in zip(trained, before, strict=True)]
        gradients = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        tensors = {
            "activations": strategy.reduce(tf.distribute.ReduceOp.SUM, activations, axis=None),
            "gradients": tf.concat([_sums_of_squares(gradients)[:, None], _sample_counts(gradients)], axis=1),
            "updates": tf.stack([_sums_of_squares(before), _sums_of_squares(changes)], axis=1),
            "weights": _sample_counts(weights),
        }
        self.tensors = (tensors,)


# These make few operations for each tensor: a network has hundreds, and tracing takes a millisecond for each.


def _sums_of_squares(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the sum of the squares of each tensor, float64."""
    return 2.0 * tf.cast(tf.stack([tf.nn.l2_loss(tensor) for tensor in tensors]), tf.float64)


def _sample_counts(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the bucket counts of a sample of each tensor."""
    flat = [tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1]) for tensor in tensors]
    strides = [sample_stride(values.shape[0]) for values in flat]
    samples = [
        values if stride == 1 else values[::stride] for values, stride in zip(flat, strides, strict=True)
    ]
    return bucket_counts(tf.concat(samples, axis=0), _rows([sample.shape[0] for sample in samples]))


def _rows(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


# ---- what it showed

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
        activation_counts, gradient_counts, weight_counts: bucket counts (``labkit.inspection.observer``) by
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
    # A layer may be made of others, or be a model.
    of_layer = {id(weight): layer.name for layer in model.layers for weight in layer.weights}
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
