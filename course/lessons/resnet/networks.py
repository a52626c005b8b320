"""Networks with and without shortcuts, on small images, and their training by labkit's own step."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from course.lessons.short_training import one_device_step, shuffled, train_steps
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.data.network_input import shrunk, standardize
from labkit.data.shards import load_split
from labkit.inspection.observer import Observation, StepObserver, read_observation
from labkit.models.layer_factory import LayerFactory
from labkit.models.resnet import resnet
from labkit.optim.optimizers import SGD
from labkit.training.step import make_train_step

SIZE = 16  # of the images in pixels: a quarter of the arithmetic of 32 x 32


class WithoutShortcuts(LayerFactory):
    """Makes the plain twin of a ResNet: where a block would add its input, its output is all that is left.

    The shortcuts have no weights, so both networks have the same weights, and with one seed the same initial
    values.
    """

    def add(self, x, y):
        """Return ``x``, a block's residual, without the shortcut ``y``."""
        return x


class SmallImages(NamedTuple):
    """Images as a network takes them, and their labels.

    ``images``: float32 [n, height, width, channels], standardized. ``labels``: int32 [n]. ``pixels``: uint8,
    of the same shape, to be shown. ``classes``: names.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    pixels: NDArray[np.uint8]
    classes: tuple[str, ...]


def small_images(
    manifest: Manifest, count: int | None = None, split: str = "train", size: int = SIZE
) -> SmallImages:
    """Return the first ``count`` examples, or all, with ``size`` pixels a side."""
    images, labels = (values[:count] for values in load_split(manifest, split))
    pixels = np.round(shrunk(images.astype(np.float32), size)).clip(0, 255).astype(np.uint8)
    return SmallImages(shrunk(standardize(images, manifest), size), labels, pixels, manifest.classes)


def small_network(num_layers: int, *, shortcuts: bool = True, size: int = SIZE, seed: int = 0) -> keras.Model:
    """Return labkit's ResNet with basic blocks for 10 classes, or its plain twin.

    Args:
        num_layers: 6n+2.
        shortcuts: False leaves the additions out; see ``WithoutShortcuts``.
        size: side of the images in pixels.
        seed: decides the initial weights.
    """
    layers = (LayerFactory if shortcuts else WithoutShortcuts)(seed=seed, batch_norm_decay=0.9)
    images = keras.Input((size, size, 3), name="images", dtype="float32")
    logits = resnet(layers, images, num_layers=num_layers, resnet_version=1, block="basic", num_classes=10)
    return keras.Model(images, logits, name=f"{'ResNet' if shortcuts else 'plain'}-{num_layers}")


class TrainedNetwork(NamedTuple):
    """A trained network. ``losses``: float64 [steps], in nats, before each update."""

    model: keras.Model
    losses: NDArray[np.float64]

    @property
    def final_loss(self) -> float:
        """Mean over the last fifth of the steps."""
        return float(self.losses[-max(1, len(self.losses) // 5) :].mean())


def train_small(model: keras.Model, data: SmallImages, config: Config, **options: Any) -> TrainedNetwork:
    """Train ``model`` on ``data``, one device, without augmentation, with labkit's own step and optimizer.

    Args:
        model: made by ``small_network``.
        data: at least one batch of examples. Each epoch has an order of its own.
        config: its steps, batch size, seed and everything about the optimizer count.
        options: further arguments of ``make_train_step``.
    """
    size = config.data.images_per_step
    losses = train_steps(
        one_device_step(model, SGD(model, config.optimizer), size, **options),
        shuffled(data.images, data.labels, size, config.run.seed),
        config.optimizer,
        steps=config.run.train_steps,
        steps_per_epoch=len(data.labels) / size,
    )
    return TrainedNetwork(model, losses)


def observe(model: keras.Model, data: SmallImages, config: Config) -> Observation:
    """Return what a training step on the first batch shows of each layer. The weights aren't changed.

    Args:
        model: made by ``small_network``.
        data: at least one batch of examples.
        config: its batch size and everything about the optimizer count.
    """
    batch_size, weights = config.data.images_per_step, model.get_weights()
    observer = StepObserver(model, batch_size)
    step = make_train_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, config.optimizer),
        tf.Variable(0, dtype=tf.int64, trainable=False),
        global_batch_size=batch_size,
        observer=observer,
    )
    # Without tf.function: tracing a deep network takes longer than one step.
    images, labels = tf.constant(data.images[:batch_size]), tf.constant(data.labels[:batch_size])
    step(images, labels, tf.constant(config.optimizer.learning_rate, tf.float32), 0.0)
    observation = read_observation(model, frozenset(), observer.tensors[0])
    model.set_weights(weights)
    return observation
