"""A network that is trained: model, optimizer and compiled steps under one strategy. It knows no run."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from labkit.config import Config
from labkit.data.augment import check_own
from labkit.data.inputs import InputShare, augmentation_of, choose_input_path
from labkit.data.manifest import Manifest
from labkit.data.network_input import NetworkInput, as_input, network_input_of
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.data.shards import load_split
from labkit.distributed.asynchronous_step import make_asynchronous_step, read_packed
from labkit.distributed.devices import Devices, make_strategy
from labkit.distributed.exchange import ExchangeTimer, all_reduce_bytes, sum_over_replicas
from labkit.distributed.synchronous import Steps, variables_on_servers
from labkit.inspection.observer import (
    UNOBSERVED,
    Observation,
    StepObserver,
    Unobserved,
    local_values,
    read_observation,
)
from labkit.models.convolution import Whitening
from labkit.models.freezing import Frozen, trained_parameters
from labkit.models.initial_weights import Transfer
from labkit.optim.network import TrainedNetwork
from labkit.optim.optimizers import check_keras_optimizer
from labkit.optim.schedules import learning_rate_at
from labkit.training.checkpoints import CheckpointState, checkpoint_of_network
from labkit.training.evaluate import Evaluation, evaluate_split, make_predict_step
from labkit.training.objective import loss_of
from labkit.training.step import make_train_step

ADAPTING_BATCH, ADAPTING_BATCHES = 500, 10  # 5,000 images, as in airbench


class Network(TrainedNetwork):
    """A trained network with its compiled steps, under one strategy.

    Args:
        config: resolved: it names the data set.
        manifest: the prepared data set.
        devices: of this process's replicas; TensorFlow is already configured for them.
        data_format: ``channels_last`` or ``channels_first``.
        strategy: the strategy of a cluster; None makes one for this process.

    Attributes, beside those of ``TrainedNetwork``:
        loss: the training loss, with the metrics.
        train_step_for: takes a set of frozen layers, an image size, and whether the step is inspected, and
            returns the compiled step for them (cached).
        predict_step: runs under ``evaluation_strategy``, with the average of the weights if there is one.
        augmented_predict_step: the same with test-time augmentation; None if that is off.

    Raises InputError as ``build_model_to_train`` and ``loss_of`` do.
    """

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        devices: Devices,
        data_format: str,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        remote = devices.asynchronous_workers > 0
        placement = config.distribution.variable_placement if remote else "round_robin"
        self.devices = devices
        self.loss = loss_of(config, manifest)
        check_keras_optimizer(config.optimizer)
        if config.data.augment is not None:
            check_own(config.data.augment, network_input_of(config.data).shape(manifest))
        self.strategy = strategy or make_strategy(devices, config.distribution.variable_strategy)
        with self.strategy.scope(), variables_on_servers(placement, devices.num_ps):
            super().__init__(config, manifest, data_format)
        self.train_step_for: Callable[..., Any] = functools.cache(
            lambda frozen, image_size, inspected: _compiled_step(self, frozen, image_size, inspected)
        )
        # With parameter servers, the coordinator evaluates locally, outside the cluster's strategy.
        self.evaluation_strategy = tf.distribute.get_strategy() if remote else self.strategy
        predicting = functools.partial(
            make_predict_step, self.evaluation_strategy, self.evaluated_model, has_remote_weights=remote
        )
        augmentation = config.run.test_time_augmentation
        self.predict_step = predicting()
        self.augmented_predict_step = None if augmentation == "none" else predicting(augmentation)

    @property
    def network_input(self) -> NetworkInput:
        """What the network takes of an image."""
        return network_input_of(self.config.data)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the network's images, which progressive resizing may shrink."""
        return self.network_input.shape(self.manifest)

    @property
    def evaluated_model(self) -> keras.Model:
        """The network that is evaluated: with the average of the weights if the run keeps one."""
        return self.model if self.average is None else self.average.averaged

    @property
    def steps_per_epoch(self) -> float:
        """Training examples divided by the global batch size; rarely a whole number."""
        return self.manifest.count("train") / self.config.data.images_per_step

    @property
    def steps(self) -> Steps:
        """What an engine runs the training with."""
        return Steps(
            strategy=self.strategy,
            num_workers=self.devices.asynchronous_workers or self.devices.num_workers,
            compiled_at=self.train_step_at,
            learning_rate_at=self.learning_rate_at,
            exchanged_bytes_at=self.all_reduce_bytes_at,
            named=self.loss.named,
            observation=self.observation,
            updates=self.step,
        )

    def train_step_at(self, step_index: int) -> Any:
        """Return the compiled step ``step_index``, from 0 (``make_train_step``)."""
        return self.train_step_for(
            self.freezing.at(step_index), self.image_size_at(step_index), self.is_inspected(step_index)
        )

    def is_inspected(self, step_index: int) -> bool:
        """Return whether step ``step_index`` also returns what ``observation`` takes."""
        every = self.config.run.inspect_every_steps
        return every > 0 and (step_index + 1) % every == 0

    def observation(self, step_index: int, tensors: Mapping[str, Any]) -> Observation:
        """Return what the inspected step ``step_index`` showed."""
        return read_observation(self.model, self.freezing.at(step_index), tensors)

    def learning_rate_at(self, step_index: int) -> float:
        """Return the learning rate of step ``step_index``."""
        return learning_rate_at(
            step_index,
            self.config.optimizer,
            total_steps=self.config.run.train_steps,
            steps_per_epoch=self.steps_per_epoch,
        )

    def work_after(self, step: int) -> float:
        """Return the expected time of all steps after ``step``, in units of a step of whole images."""
        pixels, work = math.prod(self.input_shape[:2]), 0.0
        for size, share in (*self.config.data.image_sizes, (math.sqrt(pixels), 1.0)):
            end = max(step, math.ceil(share * self.config.run.train_steps))
            # A part of 0.15 doesn't depend on the pixels: 0 (fast_residual) to 0.19 (resnet20) were measured.
            work, step = work + (end - step) * (0.15 + 0.85 * size**2 / pixels), end
        return work

    def image_size_at(self, step_index: int) -> int | None:
        """Return the image side, in pixels, in step ``step_index``; None means that images aren't resized."""
        return self.config.data.image_size_at(step_index, self.config.run.train_steps)

    def all_reduce_bytes_at(self, step_index: int) -> float:
        """Return the bytes that each worker of a synchronous cluster sends and receives in a step."""
        if self.devices.num_workers == 1:
            return 0.0
        compression = self.config.distribution.gradient_compression
        return all_reduce_bytes(
            self.model, self.freezing.at(step_index), self.devices.num_replicas, compression
        )

    @property
    def train_step(self) -> Any:
        """The compiled first step, not inspected. It serves all others unless layers thaw or images grow."""
        return self.train_step_for(self.freezing.at(0), self.image_size_at(0), False)

    def batch(self, step_index: int) -> tuple[Any, Any]:
        """Return the distributed (images, labels) of step ``step_index``; in a cluster, all workers wait."""
        return next(training_batches(self, start_step=step_index, stop_step=step_index + 1))

    def batch_spec(self, step_index: int) -> tuple[Any, Any]:
        """Return the specifications of the distributed (images, labels) of step ``step_index``."""
        batches: Any = training_batches(self, start_step=step_index, stop_step=step_index + 1)
        return batches.element_spec

    def begin(self, transfer: Transfer | None = None) -> None:
        """Prepare the weights of a new run: adapt whitening to the data, then load ``transfer``, if given."""
        self.adapt_to_data()
        if transfer is not None:
            transfer.load(self.model)
            self.optimizer.begin()
        if self.average is not None:
            self.average.begin()

    def adapt_to_data(self) -> None:
        """Compute the weights of whitening layers from training images."""
        layers = [layer for layer in self.model.layers if isinstance(layer, Whitening)]
        if not layers:
            return
        batches = eval_dataset(
            self.manifest, "train", global_batch_size=ADAPTING_BATCH, network_input=self.network_input
        )
        # The last batch of a small data set is padded with repeated images of weight 0.
        seen = [images[weight > 0] for images, _, _, weight in batches.take(ADAPTING_BATCHES)]
        for layer in layers:
            layer.adapt(tf.concat(seen, axis=0).numpy())

    def state_after(self, step: int) -> CheckpointState:
        """Return what a checkpoint of this network after ``step`` steps says of itself."""
        seed, replicas = self.config.run.seed, self.devices.num_replicas
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        return CheckpointState(step, seed, self.manifest.checksum, replicas, intra_threads=threads)

    def model_checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint of the state that evaluation needs."""
        return checkpoint_of_network(self.config, self.evaluated_model)

    def evaluate(
        self, split: str, *, augmented: bool = True, on_batch: Callable[[], None] = lambda: None
    ) -> Evaluation:
        """Evaluate the current weights on ``split``, together with all workers of a synchronous cluster.

        ``augmented``: whether to do so with test-time augmentation as well, if that is on. ``on_batch``: see
        ``evaluate_split``.
        """
        evaluated = functools.partial(
            evaluate_split,
            self.evaluation_strategy,
            manifest=self.manifest,
            split=split,
            loss=self.loss,
            network_input=self.network_input,
            global_batch_size=self.config.data.eval_batch_size,
            num_workers=self.devices.num_workers,
            worker_number=self.devices.worker_number,
            on_batch=on_batch,
        )
        plain = evaluated(predict_step=self.predict_step)
        if self.augmented_predict_step is None or not augmented:
            return plain
        return replace(plain, augmented=evaluated(predict_step=self.augmented_predict_step))

    def num_parameters(self) -> int:
        """Return the number of trainable weights."""
        return sum(math.prod(weight.shape) for weight in self.model.trainable_weights)

    def trained_parameters(self, step_index: int) -> int:
        """Return the number of weights that step ``step_index`` trains."""
        return trained_parameters(self.model, self.freezing.at(step_index))

    def state_is_finite(self) -> bool:
        """Return whether nothing that a step changes is NaN or infinite."""
        numbers = (value for value in self.state_variables if value.dtype.is_floating)
        return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in numbers)

    def checkpoint_bytes(self) -> int:
        """Return about how many bytes a checkpoint has."""
        return sum(math.prod(value.shape) * value.dtype.size for value in self.state_variables)


def _compiled_step(
    network: Network, frozen: Frozen, image_size: int | None, inspected: bool
) -> Callable[..., Any]:
    """Return the compiled ``train_step``, which returns the metrics and when gradients were exchanged.

    That is float64 [2], begin and end: zeros for one replica, and NaN for several with ``deterministic``,
    where TensorFlow refuses to read the clock. With parameter servers it is what ``make_asynchronous_step``
    reports. An ``inspected`` step returns the tensors of ``StepObserver`` as well, and isn't compiled by XLA.
    """
    config, devices, loss = network.config, network.devices, network.loss
    batch_size, smoothing = config.data.images_per_step, config.optimizer.label_smoothing
    variables = network.strategy, network.model, network.optimizer, network.step
    observer: Unobserved = UNOBSERVED
    if inspected:
        read = read_packed if devices.asynchronous_workers else local_values
        observer = StepObserver(network.model, batch_size, read)
    common: dict[str, Any] = {
        "frozen": frozen,
        "image_size": image_size,
        "compression": config.distribution.gradient_compression,
        # Averages that come with the initial weights are as good as any.
        "adapts_averages": config.model.batch_norm_decay is None and config.transfer.start_from is None,
        "observer": observer,
    }
    if devices.asynchronous_workers:
        if not _sends_standardized(config):
            settings = network.network_input
            common["standardize"] = functools.partial(as_input, manifest=network.manifest, settings=settings)
        metrics_of = functools.partial(
            loss.step_metrics_of, label_smoothing=smoothing, global_batch_size=batch_size
        )
        slow_worker = config.distribution.slow
        compiled = make_asynchronous_step(
            *variables, **common, metrics_of=metrics_of, slow_worker=slow_worker
        )
        return tf.function(compiled, reduce_retracing=True, autograph=False)
    if network.average is not None:
        common["follow"] = network.average.update
    timer = None if devices.num_replicas == 1 or config.run.deterministic else ExchangeTimer()
    unmeasured = [0.0 if devices.num_replicas == 1 else math.nan] * 2
    train_step = make_train_step(
        *variables,
        **common,
        global_batch_size=batch_size,
        loss=loss,
        label_smoothing=smoothing,
        passes=config.data.parts_of_replica,
        ghosts=config.data.ghost_batches,
        xla=config.distribution.xla and not inspected,
        reduce=timer.sum_over_replicas if timer else sum_over_replicas,
    )

    @tf.function(reduce_retracing=True, autograph=False)
    def compiled_step(images, labels, learning_rate, stop):
        metrics = train_step(images, labels, learning_rate, stop)
        moments = timer.moments if timer else tf.constant(unmeasured, tf.float64)
        return metrics, moments, *observer.tensors

    return compiled_step


def _sends_standardized(config: Config) -> bool:
    """Return whether a coordinator sends standardized images, four times the bytes: what is mixed needs them.

    Not so CutMix where all images are standardized alike.
    """
    each = config.data.standardization == "per_image"
    return config.data.mixup_alpha > 0 or (each and config.data.cutmix_alpha > 0)


def training_batches(network: Network, *, start_step: int, stop_step: int) -> Iterator[Any]:
    """Return distributed (images, labels) batches of steps ``start_step`` to ``stop_step`` - 1."""
    config, manifest, devices = network.config, network.manifest, network.devices
    path = choose_input_path(manifest, config.data.input_path)
    arrays = load_split(manifest, "train") if path == "memory" else None
    share = InputShare(
        num_replicas=devices.num_replicas,
        first_replica=devices.worker_number * devices.num_local_replicas,
        num_local_replicas=devices.num_local_replicas,
    )
    data = config.data
    # With parameter servers, the coordinator makes the batches and sends them with the steps.
    distributing = network.evaluation_strategy if devices.asynchronous_workers else network.strategy

    def batches(_: Any) -> tf.data.Dataset:
        dataset = train_dataset(
            manifest,
            global_batch_size=data.images_per_step,
            seed=config.run.seed,
            start_step=start_step,
            stop_step=stop_step,
            augmentation=augmentation_of(data),
            network_input=network.network_input,
            mixup_alpha=data.mixup_alpha,
            cutmix_alpha=data.cutmix_alpha,
            balanced=data.balanced_sampling,
            # The asynchronous step standardizes on the worker, so that uint8 goes over the network.
            standardized=devices.asynchronous_workers == 0 or _sends_standardized(config),
            input_path=path,
            share=share,
            arrays=arrays,
        )
        # Before each step of a data set that may end, TensorFlow asks all workers whether it has: an exchange
        # more, in which the quick ones wait. All have as many batches, and no more are taken.
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return iter(distributing.distribute_datasets_from_function(batches))
