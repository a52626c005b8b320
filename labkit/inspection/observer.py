"""``StepObserver``: takes the figures of a training step while the step is traced."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from labkit.inspection.buckets import bucket_counts, sample_stride
from labkit.models.layer_outputs import with_layer_outputs
from labkit.models.resizing import with_image_size

__all__ = ["UNOBSERVED", "StepObserver", "Unobserved", "observed_layers"]

# Their outputs have the values of their inputs.
_MOVES_VALUES = (
    keras.layers.InputLayer,
    keras.layers.Identity,
    keras.layers.Permute,
    keras.layers.Reshape,
    keras.layers.Flatten,
)


def observed_layers(model: keras.Model) -> list[str]:
    """Return the names of the layers that are observed, in the order of the forward pass; the last are logits."""
    return [layer.name for layer in model.operations if not isinstance(layer, _MOVES_VALUES)]


def local_values(strategy: Any, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Return the value of each variable on this process's first replica, in cross-replica context."""
    return [tf.identity(strategy.experimental_local_results(variable)[0]) for variable in variables]


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
    - ``updates`` [trained weights, 2]: the sum of the squares of the weight before the step, and of the change;
    - ``weights`` [all weights, buckets]: bucket counts after the step.

    Args:
        model: the network, without its change for other image sizes.
        global_batch_size: decides how many values of an example are sampled.
        read: (strategy, variables) to their values.
    """

    def __init__(
        self,
        model: keras.Model,
        global_batch_size: int,
        read: Callable[[Any, Sequence[tf.Variable]], list[tf.Tensor]] = local_values,
    ) -> None:
        self._model, self._global_batch_size, self._read = model, global_batch_size, read
        self._layers = observed_layers(model)
        # A strategy traces each of its replicas in a thread of its own.
        self._replica = threading.local()

    def network(self, model: keras.Model, image_size: int | None) -> Callable[..., tf.Tensor]:
        inner = with_layer_outputs(model, image_size)

        def network(images: tf.Tensor, training: bool) -> tf.Tensor:
            self._replica.outputs = inner(images, training=training)
            return self._replica.outputs[self._layers[-1]]

        return network

    def activations(self) -> tf.Tensor:
        outputs = [_at_least_float32(self._replica.outputs[name]) for name in self._layers]
        del self._replica.outputs
        counts = bucket_counts([self._sampled(values) for values in outputs])
        return tf.concat([tf.stack([_sums(values) for values in outputs]), counts], axis=1)

    def _sampled(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the same values of every example, so that the sample doesn't depend on the replicas."""
        features = math.prod(outputs.shape[1:])
        stride = sample_stride(features * self._global_batch_size)
        return tf.reshape(outputs, [-1, features])[:, ::stride]

    @contextlib.contextmanager
    def update(
        self, strategy: Any, activations: Any, gradients: Sequence[Any], indices: Sequence[int]
    ) -> Iterator[None]:
        trained = [self._model.trainable_variables[index].value for index in indices]
        before = self._read(strategy, trained)
        yield
        changes = [new - old for new, old in zip(self._read(strategy, trained), before, strict=True)]
        weights = self._read(strategy, [weight.value for weight in self._model.weights])
        gradients = [strategy.experimental_local_results(gradient)[0] for gradient in gradients]
        norms = tf.stack([_sum_of_squares(gradient) for gradient in gradients])
        squares = [(_sum_of_squares(old), _sum_of_squares(new)) for old, new in zip(before, changes, strict=True)]
        tensors = {
            "activations": strategy.reduce(tf.distribute.ReduceOp.SUM, activations, axis=None),
            "gradients": tf.concat([norms[:, None], bucket_counts(_each_sampled(gradients))], axis=1),
            "updates": tf.stack(squares),
            "weights": bucket_counts(_each_sampled(weights)),
        }
        self.tensors = (tensors,)


def _at_least_float32(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32) if values.dtype.size < 4 else values


def _sum_of_squares(values: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.cast(tf.nn.l2_loss(_at_least_float32(values)), tf.float64)


def _sums(values: tf.Tensor) -> tf.Tensor:
    """Return the count, the sum, the sum of the squares and the number of zeros, float64 [4]."""
    zeros = tf.reduce_sum(tf.cast(tf.equal(values, 0.0), values.dtype))
    figures = [tf.size(values), tf.reduce_sum(values), _sum_of_squares(values), zeros]
    return tf.stack([tf.cast(figure, tf.float64) for figure in figures])


def _each_sampled(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.reshape(tensor, [-1])[:: sample_stride(math.prod(tensor.shape))] for tensor in tensors]
