"""Many short trainings of one network in one process, from given weights and with given layers frozen."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from course.lessons.short_training import Step, one_device_step, restart, train_steps
from labkit.config import Config
from labkit.data.augment import augment
from labkit.data.hashes import augmentation_key, order_key, permutation
from labkit.data.inputs import augmentation_of
from labkit.data.manifest import Manifest
from labkit.data.network_input import standardize
from labkit.data.shards import load_split
from labkit.data.subset import with_train_examples
from labkit.models.freezing import HEAD, Frozen, stages
from labkit.models.initial_weights import weights_by_name
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from labkit.training.checkpoints import prepare_transfer
from labkit.training.objective import loss_of

TEST_IMAGES = 500


@dataclass(frozen=True)
class Trained:
    """The result of a training: accuracy on the test images, and all weights by name, before and after."""

    accuracy: float
    before: Mapping[str, NDArray[Any]]
    after: Mapping[str, NDArray[Any]]

    def moved(self) -> dict[str, float]:
        """Return how far the kernels of each stage moved: norm of the change over norm of the weights."""
        parts: dict[str, list[str]] = {}
        for name in self.before:
            if name.endswith("/kernel"):
                parts.setdefault(name.split("_")[0].split("/")[0], []).append(name)
        return {
            stage: float(
                np.sqrt(sum(np.sum((self.after[n] - self.before[n]) ** 2) for n in names))
                / np.sqrt(sum(np.sum(self.before[n] ** 2) for n in names))
            )
            for stage, names in parts.items()
        }

    def averages_moved(self, stage: str) -> float:
        """Return the largest change of a moving average in the layers of ``stage``."""
        names = [name for name in self.before if name.startswith(f"{stage}_") and "/moving" in name]
        return max(float(abs(self.after[name] - self.before[name]).max()) for name in names)


class Trainer:
    """A network for ``manifest``, trained again and again on few of its images.

    Each combination of frozen stages is compiled once. ``freezings`` are their names in order: nothing
    frozen, then one stage more at a time, from the images upwards, until only the head is trained.

    Args:
        config: network, recipe and seed; ``start_from`` names the base. ``train_batch_size`` and
            ``learning_rate`` are those of the short trainings.
        manifest: the new classes.
    """

    def __init__(self, config: Config, manifest: Manifest) -> None:
        self.config, self.manifest = config, manifest
        self._shape: dict[str, Any] = {
            "num_classes": manifest.num_classes,
            "image_shape": manifest.image_shape,
        }
        self.model = build_model(config.model, **self._shape)
        self.optimizer = SGD(self.model, config.optimizer, config.transfer.head_learning_rate_factor)
        self.transfer = prepare_transfer(config, manifest, self.model)
        self.stages = stages(self.model)
        *frozen, head = self.stages
        assert head == HEAD
        self.freezings = ["nothing", *frozen]
        self.images, self.labels = load_split(manifest, "train")
        self.test_images, self.test_labels = (a[:TEST_IMAGES] for a in load_split(manifest, "test"))
        self._fresh = functools.cache(self._initial)
        self._compiled = functools.cache(self._train_step)
        self._logits = tf.function(lambda images: self.model(images, training=False), autograph=False)
        self._prepared = tf.function(self._prepare, autograph=False)

    def frozen(self, last: str) -> Frozen:
        """Return the layers from the images up to the stage ``last``; none for ``nothing``."""
        held = self.freezings[1 : self.freezings.index(last) + 1]
        return frozenset(layer.name for stage in held for layer in self.stages[stage])

    def begin(self, seed: int, transfer: bool) -> None:
        """Set the weights: random ones of ``seed``, then those of the base where ``transfer`` asks for it."""
        restart(self.model, self.optimizer, self._fresh(seed))
        if transfer:
            assert self.transfer is not None
            self.transfer.load(self.model)

    def train(
        self,
        per_class: int,
        *,
        frozen: str = "nothing",
        transfer: bool = True,
        seed: int = 0,
        steps: int = 40,
        learning_rate: float | None = None,
    ) -> Trained:
        """Train on few images and test on ``TEST_IMAGES``.

        Args:
            per_class: training images of each class.
            frozen: up to which stage, of ``freezings``, layers are frozen.
            transfer: whether to start from the base; otherwise from random weights.
            seed: chooses the images, the initial weights of what isn't loaded, the order and augmentation.
            steps: training steps, with the configuration's learning-rate schedule over them.
            learning_rate: None: the configuration's.
        """
        self.begin(seed, transfer)
        classes, before = self.manifest.num_classes, self.weights()
        count = per_class * classes
        images, labels = with_train_examples(self.images, self.labels, classes, count, seed)
        self.fit(images, labels, frozen=frozen, seed=seed, steps=steps, learning_rate=learning_rate)
        return Trained(self.accuracy(), before, self.weights())

    def fit(
        self,
        images: NDArray[np.uint8],
        targets: NDArray[Any],
        *,
        frozen: str = "nothing",
        seed: int = 0,
        steps: int = 40,
        learning_rate: float | None = None,
    ) -> None:
        """Train from the weights that the network has; arguments as of ``train``.

        Args:
            images: uint8 [n, height, width, channels].
            targets: int32 [n], or zeros and ones [n, classes] for the loss ``sigmoid``.
        """
        size = min(self.config.data.images_per_step, len(images))
        epochs = range(math.ceil(steps * size / len(images)))
        order = np.concatenate([permutation(len(images), order_key(seed), epoch) for epoch in epochs])
        places = np.arange(steps * size).reshape(steps, size)
        values = {} if learning_rate is None else {"learning_rate": learning_rate}
        train_steps(
            self._compiled(self.frozen(frozen), size),
            (self._batch(images, targets, order[at], at // len(images)) for at in places),
            self.config.replace({"train_steps": steps, **values}).optimizer,
            steps=steps,
            steps_per_epoch=max(len(images) / size, 1),
        )

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the logits of images uint8 [n, height, width, channels], float32 [n, classes]."""
        return self._logits(standardize(images, self.manifest)).numpy()

    def accuracy(self) -> float:
        """Return the accuracy on the test images."""
        predicted = self.logits(self.test_images).argmax(axis=1)
        return float((predicted == self.test_labels).mean())

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return a copy of all weights by name."""
        return {name: weight.numpy() for name, weight in weights_by_name(self.model).items()}

    def _initial(self, seed: int) -> list[NDArray[Any]]:
        return [weight.numpy() for weight in build_model(self.config.model, **self._shape, seed=seed).weights]

    def _train_step(self, frozen: Frozen, size: int) -> Step:
        loss = loss_of(self.config, self.manifest)
        return one_device_step(self.model, self.optimizer, size, loss=loss, frozen=frozen)

    def _batch(self, images: Any, targets: Any, index: Any, epoch: Any) -> tuple[Any, Any]:
        shown = self._prepared(tf.constant(images[index]), tf.constant(epoch), tf.constant(index))
        return shown, tf.constant(targets[index], tf.int32)

    def _prepare(self, images: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        augmentation = augmentation_of(self.config.data)
        if augmentation:
            key = augmentation_key(self.config.run.seed)
            images = augment(images, self.manifest, augmentation, key=key, epoch=epoch, index=index)
        return standardize(images, self.manifest)
