"""Histograms, graph and images for TensorBoard, written only if requested."""

from typing import Any

import tensorflow as tf

from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.training.session import Session

__all__ = ["Extras"]


class Extras:
    """Writes into ``events/extras``, because TensorBoard follows only one writer per folder."""

    def __init__(self, config: Config, run: RunDirectory, session: Session) -> None:
        self._every = config.run.histograms_every_steps
        self._session = session
        self._graph = config.run.write_graph
        self._images = config.run.write_images
        self._writer: Any = None
        self.wants_batch = self._graph or self._images
        if self._every or self.wants_batch:
            self._writer = tf.summary.create_file_writer(str(run.events_path / "extras"))

    def first_batch(self, train_step: Any, arguments: tuple[Any, ...], step: int) -> None:
        """Write the training step's graph and images of the first batch, if requested.

        Args:
            train_step: the compiled step. It is traced here; the next call reuses the trace.
            arguments: the arguments of that call. The first is the standardized images of all local replicas.
            step: number of completed steps.
        """
        self.wants_batch = False
        with self._writer.as_default(step=step):
            if self._graph:
                tf.summary.graph(train_step.get_concrete_function(*arguments).graph)
            if self._images:
                images = self._session.strategy.experimental_local_results(arguments[0])[0]
                low, high = tf.reduce_min(images), tf.reduce_max(images)
                tf.summary.image("train/images", (images - low) / (high - low), max_outputs=16)
        self._writer.flush()

    def after_step(self, step: int) -> None:
        """Write a histogram of every weight if one is due."""
        if self._writer is None or not self._every or step % self._every:
            return
        with self._writer.as_default(step=step):
            for weight in self._session.model.weights:
                tf.summary.histogram(weight.path, tf.convert_to_tensor(weight.value))
        self._writer.flush()
