"""Made-up runs for `dashboard.py`, written as a training and an evaluation write them."""

import json
import math
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader, summary_of

__all__ = [
    "EventStream",
    "followed",
    "make_run",
    "write_events",
    "write_metrics",
    "write_predictions",
]

ROWS_PER_SECOND = 10
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIRST_WALL_TIME = 1.7e9
EVENT_SCALARS = ("loss", "accuracy", "learning_rate", "examples_per_second")


def make_run(home: Path, name: str, *, state: str = "finished", step: int = 0) -> RunDirectory:
    """Create a run without metrics in ``home``."""
    run = RunDirectory(home / "runs" / name)
    run.create()
    config = {
        "data": {"dataset": "shapes", "train_batch_size": 128},
        "model": {"model": "resnet", "num_layers": 20},
        "run": {"train_steps": 1_000_000},
    }
    write_json_atomic(run.config_path, config)
    environment = {"versions": {}, "description": "CPU", "command": ["labkit", "train"], "replicas": 1}
    write_json_atomic(run.environment_path, environment)
    write_status(run, state, step)
    return run


def write_status(run: RunDirectory, state: str, step: int) -> None:
    """Write the status with the summary of the metrics that are there, as a training does."""
    now, reader = time.time(), MetricsReader(run.metrics_path)
    reader.poll()
    run.write_status(
        Status(
            state=state,
            step=step,
            total_steps=1_000_000,
            heartbeat=now,
            started=now - 60,
            pid=os.getpid(),
            host=socket.gethostname(),
            examples_per_second=1000.0,
            eta_seconds=1e4,
            metrics=summary_of(reader).to_json(),
        )
    )


def row(step: int, wall_time: float) -> dict[str, Any]:
    """Return a row as a training writes it after ``step``, with noise that depends on ``step`` alone."""
    noise = random.Random(step).random()
    loss = 2.3 * math.exp(-step / 3e5) + 0.1 * noise
    return {
        "split": "train",
        "step": step,
        "epoch": step / 390,
        "loss": loss,
        "accuracy": 1 - loss / 3,
        "learning_rate": 0.1,
        "examples_per_second": 1000.0 + noise,
        "seconds_per_step": 0.1,
        "input_wait_fraction": 0.01,
        "wall_time": wall_time,
    }


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a training of ``count`` steps, ten a second."""
    for step in range(1, count + 1):
        yield row(step, FIRST_WALL_TIME + step / ROWS_PER_SECOND)


def write_metrics(run: RunDirectory, count: int) -> None:
    """Write ``count`` rows. Quicker than ``MetricsWriter``, which is not measured here."""
    with open(run.metrics_path, "w") as file:
        file.writelines(json.dumps(values) + "\n" for values in rows(count))
    if status := run.read_status():
        write_status(run, status.state, status.step)


def write_events(folder: Path, count: int) -> None:
    """Write the scalars of the same rows as TensorBoard events."""
    import tensorflow as tf
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    folder.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "events.out.tfevents.1700000000.benchmark")) as writer:
        writer.write(Event(wall_time=FIRST_WALL_TIME, file_version="brain.Event:2").SerializeToString())
        for values in rows(count):
            scalars = [Summary.Value(tag=f"train/{tag}", simple_value=values[tag]) for tag in EVENT_SCALARS]
            event = Event(wall_time=values["wall_time"], step=values["step"], summary=Summary(value=scalars))
            writer.write(event.SerializeToString())


@contextmanager
def followed(run: RunDirectory) -> Iterator[dict[int, float]]:
    """Append ten rows a second within the block.

    Yields the moment at which the row of each step was written, seconds since the epoch.
    """
    written: dict[int, float] = {}
    ended = threading.Event()
    writer = MetricsWriter(run.metrics_path)
    writer.append([row(step, time.time() - 10 + step / ROWS_PER_SECOND) for step in range(1, 100)])

    def write() -> None:
        step, due = 100, time.monotonic()
        while not ended.is_set():
            values = row(step, time.time())
            writer.append([values])
            written[step] = time.time()
            if step % 5 == 0:
                write_status(run, "running", step)
            step += 1
            due += 1 / ROWS_PER_SECOND
            ended.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield written
    finally:
        ended.set()
        thread.join()
        writer.close()


class EventStream:
    """A TensorBoard event file of which each event reaches the disk at once."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True)
        self._file = open(folder / "events.out.tfevents.1700000000.benchmark", "wb")  # noqa: SIM115
        self._records = RecordWriter(self._file)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        self._file.flush()

    def loss(self, step: int) -> float:
        """Write one event and return when, in seconds since the epoch."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        now = time.time()
        value = Summary.Value(tag="train/loss", simple_value=row(step, now)["loss"])
        self._records.write(
            Event(wall_time=now, step=step, summary=Summary(value=[value])).SerializeToString()
        )
        self._file.flush()
        return time.time()

    def close(self) -> None:
        self._file.close()


def write_predictions(run: RunDirectory, examples: int) -> None:
    """Write predictions for made-up images as ``labkit evaluate`` does."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(CLASSES), examples).astype(np.int32)
    logits = rng.normal(size=(examples, len(CLASSES)))
    logits[np.arange(examples), labels] += 2.0
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    run.predictions_path.mkdir(exist_ok=True)
    np.savez_compressed(
        run.predictions_path / "test.npz",
        images=rng.integers(0, 256, (examples, 32, 32, 3)).astype(np.uint8),
        labels=labels,
        probabilities=probabilities.astype(np.float32),
        index=np.arange(examples, dtype=np.int64),
    )
    summary = {
        "split": "test",
        "checkpoint_step": 100,
        "classes": list(CLASSES),
        "examples": examples,
        "loss": float(-np.log(probabilities[np.arange(examples), labels]).mean()),
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        "top5_accuracy": 1.0,
    }
    write_json_atomic(run.predictions_path / "test.json", summary)
