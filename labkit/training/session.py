"""One session of training: lock the run, build the network, restore the checkpoint, run the loop."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from labkit.config import Config
from labkit.data.inputs import InputShare, choose_input_path, distortion_of
from labkit.data.loading import load_split
from labkit.data.manifest import Manifest, check_same_data
from labkit.data.network_input.settings import NetworkInput, input_shape, network_input_of
from labkit.data.network_input.tensors import as_input
from labkit.data.pipeline import eval_dataset, train_dataset
from labkit.distributed.asynchronous import make_asynchronous_step
from labkit.distributed.devices import Devices, choose_data_format, make_strategy
from labkit.distributed.exchange import ExchangeTimer, all_reduce_bytes
from labkit.distributed.packing import read_packed
from labkit.distributed.signals import StopRequest, stop_on_signals
from labkit.distributed.strategies import placed_variables
from labkit.distributed.tf_compat import told_of_other_kernels
from labkit.errors import InputError
from labkit.inspection.network import state_variables
from labkit.inspection.observation import Observation, read_observation
from labkit.inspection.observer import UNOBSERVED, StepObserver, Unobserved, local_values
from labkit.models.convolution import Whitening
from labkit.models.registry import build_model
from labkit.models.resizing import check_image_sizes
from labkit.models.stages import HEAD
from labkit.optim.moving_average import MovingAverage
from labkit.optim.muon import check_muon
from labkit.optim.optimizer import Optimizer, check_weight_decay
from labkit.optim.registry import make_optimizer
from labkit.optim.schedules import learning_rate_at
from labkit.parts.trust import accept
from labkit.run_directory import RunDirectory, RunLock, process_alive, write_json_atomic
from labkit.run_directory.certificate import write_certificate
from labkit.run_directory.disk import check_disk_space, discard, quiet_threads
from labkit.run_directory.find import remember
from labkit.run_directory.machine import machine_recorded
from labkit.run_directory.stop import forget_request
from labkit.tensorboard.debugger import debugger_dump
from labkit.training.checkpoints import CheckpointState, CheckpointStore, checkpoint_of_network
from labkit.training.console import Console
from labkit.training.environment import describe_environment
from labkit.training.initial_weights import prepare_transfer
from labkit.training.losses import LOSSES, Loss
from labkit.training.plan import RunPlan, TrainResult
from labkit.training.step import make_predict_step, make_train_step
from labkit.transfer.freezing import Freezing, trained_parameters
from labkit.transfer.load import Transfer

__all__ = [
    "Session",
    "build_network",
    "make_session",
    "prepare_session",
    "train",
    "train_session",
    "training_batches",
]

ADAPTING_BATCH, ADAPTING_BATCHES = 500, 10  # 5,000 images, as in airbench


def train(plan: RunPlan) -> TrainResult:
    """Train the run of ``plan`` to its last step, from its newest checkpoint if it has one.

    Raises InputError, before the run is changed, if another process is writing it, if its checkpoints belong
    to other data or can't be restored, or if the network can't be trained with this configuration.
    """
    if plan.task is not None:
        from labkit.training.cluster import train_as_task

        return train_as_task(plan)
    assert plan.run is not None
    session, transfer = prepare_session(plan)
    plan.run.create()
    with _held(plan.run), stop_on_signals() as stop:
        if plan.overwrite:
            discard(plan.run)
        dumped = debugger_dump(plan.run) if plan.config.distribution.debugger_dump else nullcontext()
        with dumped:
            return train_session(session, transfer, stop)


@contextmanager
def _held(run: RunDirectory) -> Iterator[None]:
    """Lock the run against writes by other processes. Raises InputError if another one holds the lock."""
    lock, launcher = RunLock(run), RunLock(run, ".launcher")
    if not (launcher.acquire() and lock.acquire()):
        launcher.release()
        raise InputError(
            f"{run.path} is being written by another process; stop it with labkit stop, or name another "
            "--job-dir"
        )
    forget_request(run)  # of an earlier session, perhaps of this process
    try:
        yield
    finally:
        lock.release()
        launcher.release()


def prepare_session(
    plan: RunPlan, strategy: tf.distribute.Strategy | None = None
) -> tuple["Session", Transfer | None]:
    """Build the session, and read the weights that a new run starts from (None for a resumed run)."""
    assert plan.run is not None
    resumes = not plan.overwrite and _newest_state(plan) is not None
    session = make_session(plan, strategy)
    return session, None if resumes else prepare_transfer(plan.config, plan.manifest, session.model)


def train_session(
    session: "Session", transfer: Transfer | None, stop: StopRequest, membership: Any = None
) -> TrainResult:
    """Restore the newest checkpoint, if there is one, and train.

    Args:
        session: model, optimizer and compiled steps.
        transfer: the weights that a new run starts from; None for randomly initialized ones.
        stop: checked between steps.
        membership: this process's membership of a cluster, where only the chief writes the run; None for a
            single process.
    """
    from labkit.training.loop import TrainLoop

    plan, config = session.plan, session.config
    run = plan.run
    assert run is not None
    writes = membership is None or membership.task.is_chief
    store = CheckpointStore(run.checkpoints_path, config.run.keep_checkpoints)
    state = _newest_state(plan)
    # The kept checkpoints, the best one and one being written.
    check_disk_space(run.path, session.checkpoint_bytes() * (config.run.keep_checkpoints + 2))
    if state is not None:
        store.restore(session.checkpoint(), state.step)
    else:
        session.begin(transfer)
    if writes:
        store.remove_unfinished()
        _remove_unfinished_files(run)
    console = Console(run.log_path if writes else None)
    try:
        if writes:
            if state is not None and (told := told_of_other_kernels(run.read_environment())):
                console.line(f"note: {told}; the result differs by rounding from that of one session")
            write_json_atomic(run.config_path, config.to_json())
            accept(config, plan.files, cluster=membership is not None)
            environment = {**describe_environment(plan), "parameters": session.num_parameters()}
            write_json_atomic(run.environment_path, environment)
            remember(run)
            run.flush()
        if transfer and state is None and writes:
            # Once this checkpoint is saved, the run no longer needs the source of its weights.
            write_json_atomic(run.transfer_path, transfer.to_json())
            first = CheckpointState(0, config.run.seed, plan.manifest.checksum, session.devices.num_replicas)
            store.save(session.checkpoint(), first)
            for line in transfer.lines():
                console.line(line)
        name = membership.task.name if membership else ""
        with quiet_threads(), machine_recorded(run, name, chief=writes):
            result = TrainLoop(session, run, store, console, membership).run_to_end(state, stop)
        if writes and config.run.deterministic:
            write_certificate(run, step=result.step, settings=config.identity(), data=plan.manifest.checksum)
        return result
    finally:
        console.close()


def _newest_state(plan: RunPlan) -> CheckpointState | None:
    """Return the newest checkpoint's state, or None. Raises InputError if it was trained on other data."""
    assert plan.run is not None
    state = CheckpointStore(plan.run.checkpoints_path).latest_state()
    if state is not None:
        check_same_data(plan.manifest, state.data_checksum, plan.run.path)
    return state


def _remove_unfinished_files(run: RunDirectory) -> None:
    """Remove temporary files of killed processes: ``.<name>.<process id>….tmp``."""
    for folder in (run.path, run.predictions_path):
        for path in folder.glob(".*.tmp"):
            owner = re.search(r"\.(\d+)(\.\d+)?\.tmp$", path.name)
            if owner and not process_alive(int(owner[1])):
                path.unlink(missing_ok=True)


# ---- the network and its steps -------------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """Model, optimizer and compiled steps under one strategy. ``step`` counts completed steps.

    ``freezing`` decides which layers a step trains. ``train_step_for`` takes a set of frozen layers, an image
    size, and whether the step is inspected, and returns the compiled step for them (cached). ``predict_step``
    runs under ``evaluation_strategy``; ``augmented_predict_step`` does the same with test-time augmentation,
    and is None if that is off. ``average``: the moving average of the weights, which both then predict with.
    """

    plan: RunPlan
    devices: Devices
    strategy: tf.distribute.Strategy
    evaluation_strategy: tf.distribute.Strategy
    model: keras.Model
    optimizer: Optimizer
    step: tf.Variable
    freezing: Freezing
    train_step_for: Callable[..., Any]
    predict_step: Any
    augmented_predict_step: Any
    average: MovingAverage | None = None

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.plan.config

    @property
    def manifest(self) -> Manifest:
        """The prepared data set."""
        return self.plan.manifest

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
    def loss(self) -> Loss:
        """The training loss, with its metrics."""
        return LOSSES[self.config.optimizer.loss]

    @property
    def steps_per_epoch(self) -> float:
        """Training examples divided by the global batch size; rarely a whole number."""
        return self.manifest.count("train") / self.config.data.train_batch_size

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

    def checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint of all the state that training resumes from."""
        more = {} if self.average is None else {"averaged": self.average.averaged}
        return tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, step=self.step, **more)

    def begin(self, transfer: Transfer | None = None) -> None:
        """Prepare the weights of a new run: adapt whitening to the data, then load ``transfer``, if given."""
        self.adapt_to_data()
        if transfer is not None:
            transfer.load(self.model)
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

    def keep_state(self, folder: Path, checkpoint: tf.train.Checkpoint, step: int) -> Path:
        """Save ``checkpoint``, a state of this run after ``step`` steps, in ``folder``; return its place."""
        store = CheckpointStore(folder, keep=1)
        state = CheckpointState(step, self.config.run.seed, self.manifest.checksum, self.devices.num_replicas)
        store.save(checkpoint, state)
        return store.path(step)

    def model_checkpoint(self) -> tf.train.Checkpoint:
        """Return a checkpoint of the state that evaluation needs."""
        return checkpoint_of_network(self.config, self.evaluated_model)

    def num_parameters(self) -> int:
        """Return the number of trainable weights."""
        return sum(math.prod(weight.shape) for weight in self.model.trainable_weights)

    def trained_parameters(self, step_index: int) -> int:
        """Return the number of weights that step ``step_index`` trains."""
        return trained_parameters(self.model, self.freezing.at(step_index))

    def state_is_finite(self) -> bool:
        """Return whether nothing that a step changes is NaN or infinite."""
        values = state_variables(self.model, self.optimizer, self.average)
        return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in values)

    def checkpoint_bytes(self) -> int:
        """Return about how many bytes a checkpoint has."""
        values = state_variables(self.model, self.optimizer, self.average)
        return sum(math.prod(value.shape) * value.dtype.size for value in values)


def make_session(plan: RunPlan, strategy: tf.distribute.Strategy | None = None) -> Session:
    """Build the session. The initial weights depend only on the seed and the model.

    Args:
        plan: a plan with devices, for which TensorFlow is already configured.
        strategy: the strategy of a cluster; None makes one for this process.
    """
    config, devices = plan.config, plan.devices
    assert devices is not None
    remote = devices.asynchronous_workers > 0
    placement = config.distribution.variable_placement if remote else "round_robin"
    strategy = strategy or make_strategy(devices, config.distribution.variable_strategy)
    if plan.task is not None:
        choose_data_format(config.model, devices)  # probed here: see ``plan.decide_devices``
    with strategy.scope(), placed_variables(placement, devices.num_ps):
        model, freezing = build_network(plan)
        optimizer = make_optimizer(model, config.optimizer, config.transfer.head_learning_rate_factor)
        average = _moving_average(plan, model)
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")

    @functools.cache
    def train_step_for(frozen, image_size, inspected):
        options = {"frozen": frozen, "image_size": image_size}
        if average is not None:
            options["follow"] = average.update
        return _compiled_step(plan, strategy, model, optimizer, step, inspected, **options)

    # With parameter servers, the coordinator evaluates locally, outside the cluster's strategy.
    evaluating = tf.distribute.get_strategy() if remote else strategy
    augmentation = config.run.test_time_augmentation
    evaluated = model if average is None else average.averaged
    return Session(
        plan,
        devices,
        strategy,
        evaluating,
        model,
        optimizer,
        step,
        freezing,
        train_step_for,
        predict_step=make_predict_step(evaluating, evaluated, has_remote_weights=remote),
        augmented_predict_step=None
        if augmentation == "none"
        else make_predict_step(evaluating, evaluated, augmentation, has_remote_weights=remote),
        average=average,
    )


def _moving_average(plan: RunPlan, model: keras.Model) -> MovingAverage | None:
    """Return the moving average of the weights, in a second network; None if the run keeps none."""
    decay = plan.config.optimizer.ema_decay
    return MovingAverage(model, _network(plan), decay) if decay else None


def build_network(plan: RunPlan) -> tuple[keras.Model, Freezing]:
    """Build the network, and determine which layers are frozen at which steps.

    Raises InputError for errors that show only in the network's layers: it can't take images of a configured
    size; the layers to freeze don't exist, or are all layers; a frozen head has a learning-rate factor; no
    weight would decay; or ``check_muon`` refuses the network.
    """
    config = plan.config
    model = _network(plan)
    check_weight_decay(model, config.optimizer)
    check_image_sizes(config.data.image_sizes, model)
    freezing = Freezing(model, config.transfer)
    factor = config.transfer.head_learning_rate_factor
    if factor != 1 and HEAD in freezing.at(config.run.train_steps - 1):
        raise InputError(
            f"--head-learning-rate-factor is {factor} with --freeze {config.transfer.freeze!r}, which holds "
            f"{HEAD}, the head of {model.name}, to the end; leave one of them out"
        )
    if config.optimizer.optimizer == "muon":
        check_muon(model, freezing.at(0))
    return model, freezing


def _network(plan: RunPlan) -> keras.Model:
    """Return the network with its initial weights."""
    config, manifest = plan.config, plan.manifest
    return build_model(
        config.model,
        num_classes=manifest.num_classes,
        image_shape=input_shape(manifest, config.data),
        data_format=plan.data_format,
        seed=config.run.seed,
    )


def _compiled_step(
    plan: RunPlan, strategy, model, optimizer, step, inspected: bool, **options: Any
) -> Callable[..., Any]:
    """Return the compiled ``train_step``, which returns the metrics and when gradients were exchanged.

    That is float64 [2], begin and end: zeros for one replica, and NaN for several with ``deterministic``,
    where TensorFlow refuses to read the clock. With parameter servers it is what ``make_asynchronous_step``
    reports. An ``inspected`` step returns the tensors of ``StepObserver`` as well, and isn't compiled by XLA.
    """
    config, devices = plan.config, plan.devices
    assert devices is not None
    common = options | {
        "global_batch_size": config.data.train_batch_size,
        "loss": LOSSES[config.optimizer.loss],
        "label_smoothing": config.optimizer.label_smoothing,
        "compression": config.distribution.gradient_compression,
        # Averages that come with the initial weights are as good as any.
        "adapts_averages": config.model.batch_norm_decay is None and config.transfer.start_from is None,
    }
    observer: Unobserved = UNOBSERVED
    if inspected:
        read = read_packed if devices.asynchronous_workers else local_values
        observer = StepObserver(model, config.data.train_batch_size, read)
    common["observer"] = observer
    if devices.asynchronous_workers:
        if not _sends_standardized(config):
            settings = network_input_of(config.data)
            common["standardize"] = functools.partial(as_input, manifest=plan.manifest, settings=settings)
        common["slow_worker"] = config.distribution.slow
        asynchronous = make_asynchronous_step(strategy, model, optimizer, step, **common)
        return tf.function(asynchronous, reduce_retracing=True, autograph=False)
    common["xla"] = config.distribution.xla and not inspected
    if devices.num_replicas == 1 or config.run.deterministic:
        train_step = make_train_step(strategy, model, optimizer, step, **common)
        moments = [0.0, 0.0] if devices.num_replicas == 1 else [math.nan, math.nan]

        @tf.function(reduce_retracing=True, autograph=False)
        def untimed_step(images, labels, learning_rate, stop):
            metrics = train_step(images, labels, learning_rate, stop)
            return metrics, tf.constant(moments, tf.float64), *observer.tensors

        return untimed_step
    timer = ExchangeTimer()
    train_step = make_train_step(strategy, model, optimizer, step, **common, reduce=timer.sum_over_replicas)

    @tf.function(reduce_retracing=True, autograph=False)
    def timed_step(images, labels, learning_rate, stop):
        metrics = train_step(images, labels, learning_rate, stop)
        return metrics, timer.moments, *observer.tensors

    return timed_step


def _sends_standardized(config: Config) -> bool:
    """Return whether a coordinator sends standardized images, four times the bytes: mixup needs them."""
    return config.data.mixup_alpha > 0


def training_batches(session: Session, *, start_step: int, stop_step: int) -> Iterator[Any]:
    """Return distributed (images, labels) batches of steps ``start_step`` to ``stop_step`` - 1."""
    config, manifest, devices = session.config, session.manifest, session.devices
    path = choose_input_path(manifest, config.data.input_path)
    arrays = load_split(manifest, "train") if path == "memory" else None
    share = InputShare(
        num_replicas=devices.num_replicas,
        first_replica=devices.worker_number * devices.num_local_replicas,
        num_local_replicas=devices.num_local_replicas,
    )
    data = config.data
    # With parameter servers, the coordinator makes the batches and sends them with the steps.
    distributing = session.evaluation_strategy if devices.asynchronous_workers else session.strategy

    def batches(_: Any) -> tf.data.Dataset:
        dataset = train_dataset(
            manifest,
            global_batch_size=data.train_batch_size,
            seed=config.run.seed,
            start_step=start_step,
            stop_step=stop_step,
            distortion=distortion_of(data),
            network_input=session.network_input,
            mixup_alpha=data.mixup_alpha,
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
