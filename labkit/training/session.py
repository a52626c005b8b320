"""Everything that a process needs to train or evaluate one run, made in the right order."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from labkit.config import Config
from labkit.data.augment import standardize
from labkit.data.manifest import Manifest
from labkit.data.pipeline import eval_dataset
from labkit.distributed.devices import (
    DevicePlan,
    check_precision,
    check_xla,
    choose_data_format,
    configure_tensorflow,
    make_strategy,
)
from labkit.distributed.strategies import placed_variables
from labkit.models.registry import build_model
from labkit.models.whitening import Whitening
from labkit.optim.lookahead import Lookahead
from labkit.optim.sgd import SGD
from labkit.training.losses import LOSSES, Loss
from labkit.training.network import check_network
from labkit.training.step import make_predict_step, make_train_step
from labkit.transfer.freezing import Freezing, trained_parameters
from labkit.transfer.load import Transfer

__all__ = ["Session", "make_session", "prepare_devices"]

ADAPTING_BATCH, ADAPTING_BATCHES = 500, 10  # 5,000 images, as airbench takes


@dataclass(frozen=True)
class Session:
    """Model, optimizer and compiled steps under one strategy. ``step`` counts completed steps.

    ``freezing`` says which layers a step trains; ``train_step_for`` compiles, once for each, a step that
    leaves the named layers out, for images of one size.
    ``evaluation_strategy`` is the one that ``predict_step`` runs under; ``augmented_predict_step``
    predicts with test-time augmentation, None without.
    """

    config: Config
    manifest: Manifest
    plan: DevicePlan
    strategy: tf.distribute.Strategy
    evaluation_strategy: tf.distribute.Strategy
    model: keras.Model
    optimizer: SGD
    step: tf.Variable
    lookahead: Lookahead | None
    freezing: Freezing
    train_step_for: Callable[..., Any]
    predict_step: Any
    augmented_predict_step: Any

    @property
    def loss(self) -> Loss:
        """The loss that is trained with, and what belongs to it."""
        return LOSSES[self.config.optimizer.loss]

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which as many examples are shown as the training split has; rarely a whole number."""
        return self.manifest.count("train") / self.config.data.train_batch_size

    def train_step_at(self, number: int) -> Any:
        """Return the compiled step (``make_train_step``) number ``number``, from 0."""
        return self.train_step_for(self.freezing.at(number), self.image_size_at(number))

    def image_size_at(self, number: int) -> int | None:
        """Return the side of the images that step ``number``, from 0, is shown; None: as they are."""
        return self.config.data.image_size_at(number, self.config.run.train_steps)

    @property
    def train_step(self) -> Any:
        """The compiled first step: the only one where nothing thaws and no image is resized."""
        return self.train_step_at(0)

    def checkpoint(self) -> tf.train.Checkpoint:
        """Return all of the state that training goes on from."""
        averages = {} if self.lookahead is None else {"lookahead": self.lookahead}
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, step=self.step, **averages)

    def begin(self, transfer: Transfer | None = None) -> None:
        """Make everything ready for the first step of a new run, whose weights ``transfer`` decides on."""
        self.adapt_to_data()
        if transfer is not None:
            transfer.load(self.model)
        if self.lookahead is not None:
            self.lookahead.reset()

    def adapt_to_data(self) -> None:
        """Let layers that are made from training images see some: those of a whitening convolution."""
        layers = [layer for layer in self.model.layers if isinstance(layer, Whitening)]
        if not layers:
            return
        batches = eval_dataset(self.manifest, "train", global_batch_size=ADAPTING_BATCH)
        # The last batch of a small set is filled up with repetitions of weight 0.
        seen = [images[weight > 0] for images, _, _, weight in batches.take(ADAPTING_BATCHES)]
        for layer in layers:
            layer.adapt(tf.concat(seen, axis=0).numpy())

    def model_checkpoint(self) -> tf.train.Checkpoint:
        """Return the state that evaluation needs."""
        return tf.train.Checkpoint(model=self.model)

    def num_parameters(self) -> int:
        """Return the number of trainable weights."""
        return sum(math.prod(weight.shape) for weight in self.model.trainable_weights)

    def trained_parameters(self, number: int) -> int:
        """Return the number of weights that step ``number``, from 0, trains."""
        return trained_parameters(self.model, self.freezing.at(number))

    def weights_are_finite(self) -> bool:
        """Return whether no weight or moving average is NaN or infinite."""
        return all(bool(tf.reduce_all(tf.math.is_finite(weight.value))) for weight in self.model.weights)


def prepare_devices(config: Config) -> DevicePlan:
    """Configure TensorFlow for ``config`` and check that its devices can run it.

    Raises InputError where they can't: too few GPUs, batch sizes that the replicas don't divide, a layout
    or precision that the device doesn't have.
    """
    plan = configure_tensorflow(config.distribution, deterministic=config.run.deterministic)
    config.check_replicas(plan.num_replicas)
    check_precision(config.model, plan)
    check_xla(config, plan)
    choose_data_format(config.model, plan)
    return plan


def make_session(
    config: Config, manifest: Manifest, plan: DevicePlan, strategy: tf.distribute.Strategy | None = None
) -> Session:
    """Build the model and the rest. The initial weights depend on the seed and the model alone.

    Args:
        plan: devices, on which TensorFlow is configured already.
        strategy: of a cluster, made from ``plan`` already; None: the plan's own.
    """
    placement = config.distribution.variable_placement if plan.asynchronous_workers else "round_robin"
    strategy = strategy or make_strategy(plan, config.distribution.variable_strategy)
    data_format = choose_data_format(config.model, plan)
    with strategy.scope(), placed_variables(placement, plan.num_ps):
        model = build_model(
            config.model,
            num_classes=manifest.num_classes,
            image_shape=manifest.image_shape,
            data_format=data_format,
            seed=config.run.seed,
        )
        freezing = check_network(model, config)
        optimizer = SGD(model, config.optimizer, config.transfer.head_learning_rate_factor)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        lookahead = None
        if config.optimizer.lookahead_every_steps:
            lookahead = Lookahead(model, config.optimizer, config.run.train_steps)
    remote = plan.asynchronous_workers > 0
    make_step = functools.partial(
        make_train_step,
        strategy,
        model,
        optimizer,
        step,
        global_batch_size=config.data.train_batch_size,
        loss=LOSSES[config.optimizer.loss],
        label_smoothing=config.optimizer.label_smoothing,
        standardize=functools.partial(standardize, manifest=manifest) if remote else tf.identity,
        lookahead=lookahead,
        remote_variables=remote,
        deterministic=config.run.deterministic,
        xla=config.distribution.xla,
    )
    train_step_for = functools.cache(lambda frozen, size: make_step(frozen=frozen, image_size=size))
    # With parameter servers the coordinator evaluates by itself: their strategy would want a worker for it.
    evaluating = tf.distribute.get_strategy() if plan.asynchronous_workers else strategy
    predict_step = make_predict_step(evaluating, model)
    views = config.run.test_time_augmentation
    augmented_predict_step = make_predict_step(evaluating, model, views) if views != "none" else None
    return Session(
        config,
        manifest,
        plan,
        strategy,
        evaluating,
        model,
        optimizer,
        step,
        lookahead,
        freezing,
        train_step_for,
        predict_step,
        augmented_predict_step,
    )
