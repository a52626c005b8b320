"""The step of an evaluation: logits of a batch, on each replica."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from labkit.models.folding import folded_normalization

__all__ = ["averaged_over_views", "make_predict_step"]

SMALLEST_HALF = 64  # images of half a batch that is predicted by halves: parts of 16 and 32 were slower


def make_predict_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    test_time_augmentation: str = "none",
    *,
    has_remote_weights: bool = False,
) -> Callable[[Any], Any]:
    """Return ``predict_step(images)`` -> logits float32 [batch, num_classes], per replica.

    Batch normalization is folded into the convolutions (``models.folding``). ``test_time_augmentation``
    averages the logits over several augmented copies of each image (``averaged_over_views``).
    With ``has_remote_weights``, weights are read once for each batch.
    """
    on_one_cpu = strategy.num_replicas_in_sync == 1 and not tf.config.list_logical_devices("GPU")
    one_at_a_time = tf.config.threading.get_inter_op_parallelism_threads() == 1
    # Remote weights would be read once for each half.
    by_halves = on_one_cpu and not one_at_a_time and not has_remote_weights
    network = functools.partial(_by_halves if by_halves else _whole, model)

    def predict(images):
        with folded_normalization(model):
            return averaged_over_views(network, images, test_time_augmentation)

    @tf.function(reduce_retracing=True, autograph=False)
    def predict_step(images):
        return strategy.run(predict, args=(images,))

    return predict_step


def _whole(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    return model(images, training=False)


def _by_halves(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    """Return the model's logits, where the size allows computed for two halves of the batch at a time.

    On two cores this is faster (docs/speed.md, "Inference"); the logits of ResNet-20 were bit-equal.
    """
    size = images.shape[0]
    if size is None or size % 2 or size < 2 * SMALLEST_HALF:
        return _whole(model, images)
    halves = tf.reshape(images, [2, size // 2, *images.shape[1:]])
    like = tf.as_dtype(model.outputs[0].dtype)
    logits = tf.map_fn(
        lambda half: _whole(model, half), halves, parallel_iterations=2, fn_output_signature=like
    )
    return tf.reshape(logits, [size, -1])


def averaged_over_views(model: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor, views: str) -> tf.Tensor:
    """Return the mean logits over the views of each image, float32 [batch, num_classes].

    Args:
        model: maps images to logits.
        images: float32 [batch, height, width, channels].
        views: ``none``, ``mirror`` or ``mirror_and_shift``. ``mirror`` averages the image and its mirror
            image. ``mirror_and_shift`` averages six views: the image shifted by one pixel up and left, the
            same down and right, with reflected borders, and the unshifted image with twice their weight, each
            also mirrored (Jordan, 2024, arXiv:2404.00498, section 3.5, "multi-crop").
    """
    if views == "none":
        return model(images)

    def with_mirror(view: tf.Tensor) -> tf.Tensor:
        return (model(view) + model(tf.reverse(view, axis=[2]))) / 2

    logits = with_mirror(images)
    if views == "mirror_and_shift":
        height, width = images.shape[1], images.shape[2]
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
        shifted = [padded[:, :height, :width], padded[:, 2:, 2:]]
        logits = (logits + sum(map(with_mirror, shifted)) / 2) / 2
    return logits
