"""The synchronous training step."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.distributed.exchange import compressed, sum_over_replicas, update_moving_averages
from labkit.inspection.observer import UNOBSERVED, Unobserved
from labkit.models.freezing import Frozen, frozen_norms, trained_indices
from labkit.models.layers import dropout_draws, recorded_batch_statistics, statistics_of
from labkit.models.variants import shrunk
from labkit.optim.optimizer import Optimizer
from labkit.training.losses import SOFTMAX, Loss


def make_train_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: Optimizer,
    step: tf.Variable,
    *,
    global_batch_size: int,
    loss: Loss = SOFTMAX,
    label_smoothing: float = 0.0,
    adapts_averages: bool = False,
    frozen: Frozen = frozenset(),
    image_size: int | None = None,
    follow: Callable[[Any, tf.Tensor], None] = lambda strategy, step: None,
    passes: int = 1,
    ghosts: int = 1,
    xla: bool = False,
    compression: str = "none",
    reduce: Callable[..., list[Any]] = sum_over_replicas,
    observer: Unobserved = UNOBSERVED,
) -> Callable[..., tf.Tensor]:
    """Return ``train_step(images, labels, learning_rate, stop)``, to be compiled by ``tf.function``.

    ``train_step`` takes a distributed batch and two float32 scalars: the learning rate, and ``stop``, 1
    if this process was asked to stop. It returns float [n + 2], equal in every process: the mean loss
    and the n ``loss.step_metrics`` of the global batch, and the number of replicas that were asked to stop.
    ``frozen`` layers aren't updated; ``follow`` is called after each update; ``observer`` sees the values.

    With several ``passes`` each replica's slice is computed in as many parts, ``ghosts`` of them at a time,
    and the parts' gradients are summed. Batch normalization uses the statistics of each part (the "ghost
    batches" of Hoffer et al. 2017, arXiv:1705.08741); their mean counts for the moving averages.
    """
    network = observer.network(model, image_size)
    indices = trained_indices(model, frozen)
    weights = [model.trainable_variables[index].value for index in indices]

    @tf.function(jit_compile=True, autograph=False) if xla else lambda function: function
    def loss_and_gradients(images, labels, done, first):
        tape = tf.GradientTape(watch_accessed_variables=False)  # so not what only frozen weights decide
        draws = dropout_draws(done, first, global_batch_size)
        with tape, draws, recorded_batch_statistics(frozen_norms(model, frozen)) as recorded:
            tape.watch(weights)
            logits = network(images if image_size is None else shrunk(images, image_size), training=True)
            metrics = loss.step_metrics_of(labels, logits, label_smoothing, global_batch_size)
        statistics = statistics_of(model, recorded)
        with tf.name_scope("gradient_tape/"):  # where the tape's own operations stand
            gradients = tape.gradient(metrics[0], weights, unconnected_gradients="zero")
            if passes > 1:  # those of embeddings are sparse, and can't be added so
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return metrics, gradients, statistics, observer.activations()

    def in_passes(images, labels, done, first):
        """Return what ``loss_and_gradients`` does for the whole slice, from one part after the other."""
        size = images.shape[0] // passes
        parts = [tf.reshape(value, [passes, size, *value.shape[1:]]) for value in (images, labels)]

        def of_pass(number):
            shown = (value[number] for value in parts)
            return loss_and_gradients(*shown, done, first + number * size)

        def added(number, sums=None):
            """Return ``sums`` and what the passes from ``number`` on give that are computed at once."""
            together = [of_pass(number + further) for further in range(ghosts)]
            together = together if sums is None else [sums, *together]
            return tf.nest.map_structure(lambda *values: sum(values[1:], values[0]), *together)

        def add(number, *sums):
            sums = added(number, tf.nest.pack_sequence_as(begin, sums))
            return number + ghosts, *tf.nest.flatten(sums)

        begin = sums = added(0)
        if ghosts < passes:
            state = (tf.constant(ghosts), *tf.nest.flatten(begin))
            _, *sums = tf.while_loop(lambda number, *_: number < passes, add, state, parallel_iterations=1)
        metrics, gradients, statistics, activations = tf.nest.pack_sequence_as(begin, tf.nest.flatten(sums))
        statistics = tf.nest.map_structure(lambda total: total / passes, statistics)
        return metrics, gradients, statistics, activations

    def reduce_and_update(strategy, gradients, statistics, activations, learning_rate, done):
        gradients = reduce(strategy, gradients, weights)
        with observer.update(strategy, activations, gradients, indices):
            optimizer.apply(strategy, gradients, learning_rate, indices)
            update_moving_averages(strategy, model, statistics, done if adapts_averages else None)
        follow(strategy, done)

    def replica_step(images, labels, learning_rate, stop, done):
        compute = loss_and_gradients if passes == 1 else in_passes
        replica = tf.distribute.get_replica_context()
        size = global_batch_size // replica.num_replicas_in_sync
        first = tf.cast(replica.replica_id_in_sync_group, tf.int32) * size  # of this slice's images
        metrics, gradients, statistics, activations = compute(images, labels, done, first)
        with tf.name_scope("gradient_tape/"):
            gradients = compressed(gradients, compression)
        arguments = (gradients, statistics, activations, learning_rate, done)
        replica.merge_call(reduce_and_update, args=arguments)
        return tf.stack([*metrics, tf.cast(stop, metrics[0].dtype)])

    def train_step(images, labels, learning_rate, stop):
        metrics = strategy.run(replica_step, args=(images, labels, learning_rate, stop, step.read_value()))
        step.assign_add(1)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, metrics, axis=None)

    return train_step
