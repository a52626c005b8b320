"""Graph and images for TensorBoard, and a profile of some steps; each only if requested."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit.callbacks.callback import Callback
from labkit.callbacks.training import Training

if TYPE_CHECKING:
    from labkit.run_directory import RunDirectory

__all__ = ["Graph", "Images", "Profile", "events_writer"]


def events_writer(run: "RunDirectory") -> Any:
    """Return the process's writer into ``events/extras``; TensorBoard follows one writer for each folder."""
    import tensorflow as tf

    path = str(run.events_path / "extras")
    if path not in _WRITERS:
        _WRITERS.clear()  # the writer of an earlier run in this process
        _WRITERS[path] = tf.summary.create_file_writer(path)
    return _WRITERS[path]


_WRITERS: dict[str, Any] = {}


class Graph(Callback):
    """Writes the graph of the training step before the first step."""

    def on_start(self, training: Training) -> None:
        import tensorflow as tf

        session = training.session
        images, labels = session.batch(training.step)
        arguments = (images, labels, tf.constant(0.0), tf.constant(0.0))
        # Traced here; the first step reuses the trace.
        graph = session.train_step_at(training.step).get_concrete_function(*arguments).graph
        with events_writer(training.run).as_default(step=training.step):
            tf.summary.graph(graph)
        events_writer(training.run).flush()


class Images(Callback):
    """Writes images of the first batch, as the network sees them, before the first step."""

    COUNT = 16

    def on_start(self, training: Training) -> None:
        import tensorflow as tf

        session = training.session
        images = session.strategy.experimental_local_results(session.batch(training.step)[0])[0]
        images = tf.cast(images, tf.float32)
        low, high = tf.reduce_min(images), tf.reduce_max(images)
        with events_writer(training.run).as_default(step=training.step):
            tf.summary.image("train/images", (images - low) / (high - low), max_outputs=self.COUNT)
        events_writer(training.run).flush()


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
