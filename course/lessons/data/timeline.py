"""An input pipeline whose stages record when they work on which batch, and the timeline of it."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from course.lessons.data.records import record_fields
from course.lessons.short_training import network_of, one_device_step
from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.figures.style import OKABE_ITO, drawing
from labkit.optim.optimizers import SGD

STAGES = ("read", "decode", "augment", "train")
STORED_SIDE = 160  # pixels of a stored photograph; the network sees the size of the data set


class Event(NamedTuple):
    """A stage worked on a batch from ``start`` to ``end``, in seconds from the beginning of the timeline."""

    stage: str
    batch: int
    start: float
    end: float


class Photographs:
    """A data set of JPEG photographs in one file for each batch, on a disk that answers late.

    The methods are the stages of an input pipeline, to be given to ``tf.data.Dataset.map``. Each adds the
    time of its beginning and end to the element: float64 [stages so far, 2], seconds since 1970.

    Args:
        folder: for the files; it must exist.
        images: uint8 [n, side, side, 3]; enlarged and compressed as JPEG.
        labels: int [n].
        config: ``train_batch_size`` images are in a file, and there are ``train_steps`` files.
        delay: seconds that each read waits, as for a store that is reached through a network.
    """

    def __init__(
        self, folder: Path, images: NDArray[np.uint8], labels: NDArray[Any], config: Config, delay: float
    ) -> None:
        size = self.batch_size = min(config.data.images_per_step, len(images))
        self.delay, self.side = delay, images.shape[1]
        self.batches = min(config.run.train_steps, len(images) // size)
        chosen = labels[: self.batches * size].reshape(self.batches, size)
        self.labels = tf.constant(chosen, tf.int32)
        self.paths = [folder / f"photographs-{number:03d}.tfrecord" for number in range(self.batches)]
        for number, path in enumerate(self.paths):
            rows = images[number * size : (number + 1) * size]
            with tf.io.TFRecordWriter(str(path)) as writer:
                for image in tf.image.resize(rows, [STORED_SIDE, STORED_SIDE]):
                    writer.write(tf.io.encode_jpeg(tf.cast(image, tf.uint8)).numpy())

    def __len__(self) -> int:
        return self.batches

    @property
    def numbers(self) -> tf.data.Dataset:
        """The numbers of the batches in order, where a pipeline begins."""
        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False  # run what is written
        options.threading.private_threadpool_size = 8  # a read that waits keeps a thread
        return tf.data.Dataset.range(self.batches).with_options(options)

    def read(self, batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Read the records of a batch: (batch, JPEG string [b], times)."""
        records, times = tf.numpy_function(self._read, [batch], [tf.string, tf.float64])
        return batch, tf.ensure_shape(records, [self.batch_size]), tf.ensure_shape(times, [1, 2])

    def _read(self, batch: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
        start = time.time()
        time.sleep(self.delay)
        data, position, records = self.paths[batch].read_bytes(), 0, []
        while position < len(data):
            *_, payload, checksum = record_fields(data, position)
            records.append(data[payload.start : payload.end])
            position = checksum.end
        return np.array(records, object), np.array([[start, time.time()]])

    def decode(self, batch: tf.Tensor, records: tf.Tensor, times: tf.Tensor) -> tuple[Any, Any, Any]:
        """Decode the photographs of a batch: (batch, uint8 [b, stored side, stored side, 3], times)."""

        def decoded() -> tf.Tensor:
            return tf.stack([tf.io.decode_jpeg(record, channels=3) for record in tf.unstack(records)])

        images, times = _timed(decoded, records, times)
        return batch, tf.ensure_shape(images, [self.batch_size, STORED_SIDE, STORED_SIDE, 3]), times

    def augment(self, batch: tf.Tensor, images: tf.Tensor, times: tf.Tensor) -> tuple[Any, Any, Any]:
        """Change brightness, crop, flip and shrink: (batch, float32 [b, side, side, 3], times)."""

        def augmented() -> tf.Tensor:
            seed = tf.stack([batch, 1])
            margin = STORED_SIDE // 8
            changed = tf.image.stateless_random_brightness(tf.cast(images, tf.float32) / 255, 0.2, seed)
            size = [self.batch_size, STORED_SIDE - margin, STORED_SIDE - margin, 3]
            cropped = tf.image.stateless_random_crop(changed, size, seed)
            flipped = tf.image.stateless_random_flip_left_right(cropped, seed)
            return tf.image.resize(flipped, [self.side, self.side], antialias=True) - 0.5

        shown, times = _timed(augmented, images, times)
        return batch, tf.ensure_shape(shown, [self.batch_size, self.side, self.side, 3]), times


def _timed(work: Callable[[], tf.Tensor], before: tf.Tensor, times: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Run ``work`` when ``before`` is there; return its result and ``times`` with its start and end."""
    with tf.control_dependencies([before]):
        start = tf.timestamp()
    with tf.control_dependencies([start]):
        result = work()
    with tf.control_dependencies([result]):
        end = tf.timestamp()
    return result, tf.concat([times, [[start, end]]], axis=0)


def training_step(config: Config, manifest: Manifest) -> Callable[[Any, Any], float]:
    """Return ``train(images, labels)``, a compiled training step on one device that returns the loss."""
    model = network_of(config, manifest)
    step = one_device_step(model, SGD(model, config.optimizer), config.data.images_per_step)
    return lambda images, labels: float(step(images, labels, config.optimizer.learning_rate)[0])


def train_through(
    batches: Iterable[Any], photographs: Photographs, train: Callable[[Any, Any], Any]
) -> list[Event]:
    """Train on each batch of a pipeline of ``photographs`` once; return what each stage did when."""
    rows = []
    for batch, images, times in batches:
        started = time.time()
        train(images, photographs.labels[int(batch)])
        spans = [*times.numpy().tolist(), [started, time.time()]]
        rows += [(stage, int(batch), *span) for stage, span in zip(STAGES, spans, strict=True)]
    first = min(start for _, _, start, _ in rows)
    return [Event(stage, batch, start - first, end - first) for stage, batch, start, end in rows]


def seconds_per_batch(events: Sequence[Event]) -> float:
    """Return the mean seconds from the end of a batch's training to the next one's.

    The first batch isn't counted: nothing can be ready for it.
    """
    ends = [event.end for event in events if event.stage == "train"]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def stage_seconds(events: Sequence[Event]) -> dict[str, float]:
    """Return the median seconds that each stage works on a batch."""
    spans = {stage: [e.end - e.start for e in events if e.stage == stage] for stage in STAGES}
    return {stage: float(np.median(seconds)) for stage, seconds in spans.items()}


def overlaps(events: Sequence[Event]) -> int:
    """Return how many stages began, by more than 0.1 ms, before the one that began before them ended."""
    ordered = sorted(events, key=lambda event: event.start)
    return sum(before.end > after.start + 1e-4 for before, after in itertools.pairwise(ordered))


def waits_for_input(events: Sequence[Event]) -> float:
    """Return the mean seconds that the training waits before a batch, without the first one."""
    trained = [event for event in events if event.stage == "train"]
    gaps = [after.start - before.end for before, after in itertools.pairwise(trained)]
    return sum(gaps) / len(gaps)


def draw_timelines(timelines: Mapping[str, Sequence[Event]]) -> Figure:
    """Draw when each stage worked on which of the first batches, one panel for each pipeline.

    ``timelines``: the events of each pipeline by its name.
    """
    batches = 7
    drawn = {name: [event for event in events if event.batch < batches] for name, events in timelines.items()}
    last = max(event.end for events in drawn.values() for event in events)
    alt = f"Timelines of the first {batches} batches: {', '.join(timelines)}"
    with drawing(9.5, 1.7 * len(drawn) + 0.4, alt) as figure:
        axes = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, events) in zip(axes, drawn.items(), strict=True):
            _draw_events(axis, events, narrow=0.02 * last)
            mean = 1000 * seconds_per_batch(timelines[name])
            axis.set_title(f"{name}: {mean:.0f} ms a batch, mean of all batches")
        axes[-1].set_xlabel("milliseconds from the first read; the number in a bar is that of its batch")
        axes[-1].set_xlim(0, 1020 * last)
    return figure


def _draw_events(axis: Axes, events: Sequence[Event], narrow: float) -> None:
    """Draw a bar for each event, without its number where it is narrower than ``narrow`` seconds."""
    for row, stage in enumerate(STAGES):
        mine = sorted((event for event in events if event.stage == stage), key=lambda event: event.start)
        lanes: list[float] = []  # the end of the last bar in each lane of this stage
        places = []
        for event in mine:
            places.append(next((lane for lane, end in enumerate(lanes) if end <= event.start), len(lanes)))
            lanes[places[-1] : places[-1] + 1] = [event.end]
        height = 0.86 / max(len(lanes), 1)
        for event, lane in zip(mine, places, strict=True):
            left, width = 1000 * event.start, 1000 * (event.end - event.start)
            bottom, color = row - 0.43 + lane * height, OKABE_ITO[row]
            axis.broken_barh([(left, width)], (bottom, height), facecolor=color, edgecolor="white", lw=0.8)
            if event.end - event.start >= narrow:
                middle = left + width / 2, bottom + height / 2
                size = 7 if len(lanes) < 3 else 4.5
                axis.text(*middle, str(event.batch), ha="center", va="center", fontsize=size, color="white")
    axis.set_yticks(range(len(STAGES)), STAGES)
    axis.set_ylim(len(STAGES) - 0.45, -0.55)
    axis.tick_params(axis="y", length=0)


def draw_seconds(measured: Mapping[str, float], synthetic: float) -> Figure:
    """Draw the seconds of a step with the input of each pipeline, beside those with synthetic input.

    Args:
        measured: seconds by the name of the pipeline.
        synthetic: seconds of a step on a batch that is already there.
    """
    spent = {name: 1000 * value for name, value in {**measured, "synthetic input": synthetic}.items()}
    shown = ", ".join(f"{name} {value:.0f} ms" for name, value in spent.items())
    with drawing(7.5, 0.45 * len(spent) + 1.0, f"Time of a step: {shown}") as figure:
        axis = figure.subplots()
        colors = [OKABE_ITO[0]] * len(measured) + [OKABE_ITO[2]]
        bars = axis.barh(list(spent), list(spent.values()), color=colors, height=0.6)
        axis.bar_label(bars, fmt="{:.0f} ms", padding=3, fontsize=8)
        axis.axvline(1000 * synthetic, color=OKABE_ITO[2], linestyle=":", linewidth=1)
        axis.invert_yaxis()
        axis.set(
            title="Time of a step", xlabel="milliseconds per batch", xlim=(0, 1.15 * max(spent.values()))
        )
        axis.tick_params(axis="y", length=0)
    return figure


def measured_seconds(batches: Iterable[Any], use: Callable[[Any], Any], skipped: int = 1) -> float:
    """Return the mean seconds of taking a batch and using it, without the first ``skipped`` ones.

    Raises ValueError if there are not more batches than that.
    """
    ends = []
    for batch in batches:
        use(batch)
        ends.append(time.perf_counter())
    if len(ends) <= skipped:
        raise ValueError(f"{len(ends)} batches; give more than {skipped}")
    return (ends[-1] - ends[skipped - 1]) / (len(ends) - skipped)
