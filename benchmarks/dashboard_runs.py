"""Made-up runs for `dashboard.py`, written as a training and an evaluation write them."""

import json
import math
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader, summary_of

ROWS_PER_SECOND = 10
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIRST_WALL_TIME = 1.7e9
EVENT_SCALARS = ("loss", "accuracy", "learning_rate", "examples_per_second")


def make_run(home: Path, name: str, rows: int = 0, *, state: str = "finished") -> RunDirectory:
    """Create a run in ``home`` with ``rows`` metrics rows, ten a second, and their summary in its status."""
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
    with open(run.metrics_path, "w") as file:  # quicker than ``MetricsWriter``, which isn't measured here
        file.writelines(json.dumps(row(step)) + "\n" for step in range(1, rows + 1))
    write_status(run, state, rows)
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


def row(step: int, wall_time: float | None = None) -> dict[str, Any]:
    """Return a row as a training writes it after ``step``, with noise that depends on ``step`` alone.

    ``wall_time``: None: as if there were ten steps a second.
    """
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
        "wall_time": FIRST_WALL_TIME + step / ROWS_PER_SECOND if wall_time is None else wall_time,
    }


@contextmanager
def followed(run: RunDirectory, every: float = 1 / ROWS_PER_SECOND) -> Iterator[dict[int, float]]:
    """Append a row ``every`` so many seconds within the block.

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
            due += every
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
    """A TensorBoard event file with scalars of made-up rows."""

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        folder.mkdir(parents=True)
        self._records = tf.io.TFRecordWriter(str(folder / "events.out.tfevents.1700000000.benchmark"))
        self._write(wall_time=FIRST_WALL_TIME, file_version="brain.Event:2")

    def write(self, values: dict[str, Any], scalars: Sequence[str] = EVENT_SCALARS) -> None:
        """Write scalars of a row as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        parts = [Summary.Value(tag=f"train/{name}", simple_value=values[name]) for name in scalars]
        self._write(wall_time=values["wall_time"], step=values["step"], summary=Summary(value=parts))

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(**content).SerializeToString())

    def flush(self) -> float:
        """Let what was written reach the disk and return when, in seconds since the epoch."""
        self._records.flush()
        return time.time()

    def close(self) -> None:
        self._records.close()


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
