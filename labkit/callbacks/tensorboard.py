"""Graph and images for TensorBoard, and a profile of some steps; each only if requested."""

from collections.abc import Mapping
from typing import Any

from labkit.callbacks.callback import Callback
from labkit.callbacks.training import Training

__all__ = ["Graph", "Images", "Profile"]


class Graph(Callback):
    """Writes the graph of the training step before the first step."""

    def on_start(self, training: Training) -> None:
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

    def on_start(self, training: Training) -> None:
        import numpy as np
        import tensorflow as tf
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.image.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        from labkit.data.numpy_batch.batch import batch_of_step

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

    def before_step(self, training: Training, step: int) -> None:
        if self._traces or not self.first <= step <= self.last:
            return
        import tensorflow as tf

        tf.profiler.experimental.start(str(training.run.events_path))
        self._traces = True

    def after_step(self, training: Training, row: Mapping[str, Any]) -> None:
        if self._traces and row["step"] >= self.last:
            self._stop()

    def on_end(self, training: Training, state: str) -> None:
        if self._traces:
            self._stop()

    def _stop(self) -> None:
        import tensorflow as tf

        self._traces = False
        tf.profiler.experimental.stop()
