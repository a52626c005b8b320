"""labkit's own callbacks: early stopping, layers of inspected steps, graph, images, a profile, and where the
first NaN or Infinity comes from.
"""

import math
import shlex
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.callbacks.callback import Callback, TrainingFailed, TrainingView
from labkit.config import RunConfig
from labkit.config.fields import argument
from labkit.errors import InputError, short
from labkit.plurals import counted
from labkit.run_directory.layers import DISTRIBUTIONS
from labkit.run_directory.metrics import MetricsWriter, selection_metric, selection_name

if TYPE_CHECKING:
    from labkit.inspection.observer import Observation


WAY_OUT = "lower --learning-rate, add --warmup-steps or --gradient-clip-norm"


class CheckNumerics(Callback):
    """Ends the run at the first step whose loss, weights or velocities aren't finite, and names the tensor.

    After each step, the state is copied on the device, as the state before the next one. After a step with a
    NaN or an Infinity, the forward and backward pass of that step is made again from the copy, on one device
    and without other processes, and every tensor is looked at. The copy is kept as a checkpoint in the run's
    folder ``numerics``.

    Not for asynchronous clusters, where the weights change during a step.
    """

    def on_start(self, training: TrainingView) -> None:
        import tensorflow as tf

        self._variables = training.network.state_variables
        dtype = self._variables[0].dtype

        # One vector instead of some two hundred values to return and check. Counts fit in: float32 counts
        # exactly to 16 million.
        @tf.function(autograph=False)
        def copied() -> tuple[Any, Any]:
            parts = [tf.reshape(tf.cast(variable, dtype), [-1]) for variable in self._variables]
            state = tf.concat(parts, axis=0)
            return state, tf.reduce_all(tf.math.is_finite(state))

        self._copied = copied
        self._before, _ = copied()

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        state, is_finite = self._copied()
        if not (math.isfinite(row["loss"]) and bool(is_finite)):
            raise TrainingFailed(self._explained(training, row["step"], row["loss"], state))
        self._before = state

    def _by_variable(self, state: Any) -> list[Any]:
        """Return the value of each variable in a copy of the state."""
        import tensorflow as tf

        parts = tf.split(state, [math.prod(variable.shape) for variable in self._variables])
        return [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            for part, variable in zip(parts, self._variables, strict=True)
        ]

    def _explained(self, training: TrainingView, step: int, loss: float, state: Any) -> str:
        """Keep the state before the step, and return the sentence that says what happened."""
        from labkit.data.batch_of_step import batch_of_step
        from labkit.inspection.diagnosis import diagnose_step
        from labkit.optim.network import TrainedNetwork

        network, run = training.network, training.run
        config, manifest = network.config, network.manifest
        copy = TrainedNetwork(config, manifest, network.data_format)
        before = self._by_variable(self._before)
        copy.load(before, step - 1)
        shutil.rmtree(run.numerics_path, ignore_errors=True)  # of an earlier process of this run
        kept = training.keep_state(run.numerics_path, copy.checkpoint(), step - 1)
        kept_in = f"the state before it is kept in {kept.relative_to(run.path)}"
        _, first = diagnose_step(
            copy,
            batch_of_step(manifest, config.data, seed=config.run.seed, step=step),
            config,
            num_replicas=network.devices.num_replicas,
            loss=network.loss,
            before=before,
            after=self._by_variable(state),
        )
        if first is None:
            what = f"loss is {loss}, but every tensor is finite when one device makes the step again"
        else:
            what = first.sentence(network.devices.num_replicas)
        command = shlex.join(["labkit", "replay", str(run.path), "--step", str(step)])
        return f"step {step}: {what}; {kept_in}: {command}; {WAY_OUT}"


def builtin_callbacks(run: RunConfig) -> list[Callback]:
    """Return the callbacks of the options that are set, in the order in which they are called."""
    callbacks: list[Callback] = []
    if run.write_graph:
        callbacks.append(Graph())
    if run.write_images:
        callbacks.append(Images())
    if run.inspect_every_steps:
        callbacks.append(Inspect())
    if run.check_numerics:
        callbacks.append(CheckNumerics())
    if run.profiled_steps:
        callbacks.append(Profile(*run.profiled_steps))
    if run.early_stopping_patience:
        callbacks.append(EarlyStopping(run.early_stopping_patience))
    return callbacks


class EarlyStopping(Callback):
    """Stops after ``patience`` validations in a row without a better result than the best so far.

    The result is that by which the best checkpoint is chosen (``--best-by``). The count is restored from the
    metrics after a resume (Prechelt, "Early stopping - but when?", 1998).

    Raises InputError if ``patience`` isn't a whole number of at least 1.
    """

    def __init__(self, patience: int) -> None:
        allowed = "a whole number of at least 1"
        self.patience = argument("patience", patience, int, allowed=allowed)
        if self.patience < 1:
            raise InputError(f"patience is {short(patience)}; allowed: {allowed}")

    def on_start(self, training: TrainingView) -> None:
        if not training.network.manifest.splits.get("validation"):
            raise TrainingFailed("EarlyStopping needs a validation split, which the data set doesn't have")
        self._best: float | None = None
        self._best_step = self._without = 0
        for row in training.rows("validation"):
            self._take(training, row)

    def after_validation(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        self._take(training, row)

    def _take(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        found = selection_metric(row)
        if self._best is None or found > self._best:
            self._best, self._best_step, self._without = found, row["step"], 0
            self._value = float(row.get(selection_name(row)) or 0.0)
            return
        self._without += 1
        if self._without >= self.patience:
            training.request_stop(
                f"early stopping: no better validation than {self._value:.4f} at step {self._best_step} in "
                f"{counted(self._without, 'validation')}"
            )


class Inspect(Callback):
    """Writes the observation of each inspected step (``--inspect-every-steps``).

    One line of ``layers.jsonl`` (``docs/run-directory.md``), and for TensorBoard the histograms
    ``activations/<layer>``, ``gradients/<weight>`` and ``weights/<weight>``.
    """

    def __init__(self) -> None:
        self._writer: MetricsWriter | None = None

    def on_start(self, training: TrainingView) -> None:
        self._writer = MetricsWriter(training.run.layers_path)

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        observation = training.observation
        if observation is None:
            return
        assert self._writer is not None
        self._writer.append([layers_row(observation, row)])
        _write_histograms(training, observation, row["step"])

    def on_end(self, training: TrainingView, state: str) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def layers_row(observation: "Observation", row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line of ``layers.jsonl`` for the step of a metrics row.

    Metrics have six digits, quantiles four.
    """
    metrics = {
        name: [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
        for name, values in observation.by_layer().items()
    }
    quantiles = {name: getattr(observation, name) for name in DISTRIBUTIONS}
    return {"step": row["step"], "wall_time": row["wall_time"], **metrics, **quantiles}


def _write_histograms(training: TrainingView, observation: "Observation", step: int) -> None:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    from labkit.inspection.observer import evenly_spaced

    metadata = create_summary_metadata(display_name=None, description=None)
    summary = Summary()
    for kind in ("activation", "gradient", "weight"):
        for name, counts in getattr(observation, f"{kind}_counts").items():
            buckets = evenly_spaced(counts)
            if buckets is not None:
                summary.value.add(tag=f"{kind}s/{name}", metadata=metadata, tensor=make_tensor_proto(buckets))
    training.events.summary(summary, step)


class Graph(Callback):
    """Writes the graph of the training step before the first step."""

    def on_start(self, training: TrainingView) -> None:
        import tensorflow as tf

        network, scalar = training.network, tf.TensorSpec([], tf.float32)
        step = network.train_step_at(training.step)
        # Traced here; the first step reuses the trace. Only a specification of the batch: taking a batch in a
        # synchronous cluster would wait for the other workers.
        graph = step.get_concrete_function(*network.batch_spec(training.step), scalar, scalar).graph
        training.events.graph(graph.as_graph_def(add_shapes=True).SerializeToString(), training.step)


class Images(Callback):
    """Writes images of the first batch, as the network sees them, before the first step."""

    COUNT = 16

    def on_start(self, training: TrainingView) -> None:
        import numpy as np
        import tensorflow as tf
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.image.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        from labkit.data.batch_of_step import batch_of_step

        network, config = training.network, training.config
        if training.step == training.total_steps:
            return
        batch = batch_of_step(
            network.manifest,
            config.data,
            seed=config.run.seed,
            step=training.step + 1,
            image_size=network.image_size_at(training.step),
        )
        images = batch.standardized[: self.COUNT]
        low, high = images.min(), images.max()
        shown = np.round(255 * (images - low) / (high - low)).astype(np.uint8)
        height, width = shown.shape[1:3]
        encoded = [tf.io.encode_png(image).numpy() for image in shown]
        content = make_tensor_proto([str(width).encode(), str(height).encode(), *encoded])
        metadata = create_summary_metadata(display_name=None, description=None)
        value = Summary.Value(tag="train/images", metadata=metadata, tensor=content)
        training.events.summary(Summary(value=[value]), training.step)


class Profile(Callback):
    """Traces steps ``first`` to ``last`` for TensorBoard's profiler, into the run's events."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._traces = False

    def before_step(self, training: TrainingView, step: int) -> None:
        if self._traces or not self.first <= step <= self.last:
            return
        import tensorflow as tf

        tf.profiler.experimental.start(str(training.run.events_path))
        self._traces = True

    def after_step(self, training: TrainingView, row: Mapping[str, Any]) -> None:
        if self._traces and row["step"] >= self.last:
            self._stop()

    def on_end(self, training: TrainingView, state: str) -> None:
        if self._traces:
            self._stop()

    def _stop(self) -> None:
        import tensorflow as tf

        self._traces = False
        tf.profiler.experimental.stop()
