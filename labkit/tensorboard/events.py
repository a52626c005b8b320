"""Write a run's metrics and configuration as TensorBoard events."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labkit.config import Config
from labkit.tensorboard import hparams

__all__ = ["EventWriter"]


class EventWriter:
    """Writes scalars as TensorBoard events; TensorBoard's own thread writes the file.

    Each metrics row becomes one event. This costs as much per row as ``tf.summary.scalar`` does per value
    (``benchmarks/telemetry.py``).
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=5)
        self._step = first_step
        # Makes TensorBoard drop an earlier process's events from this step on.
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first_step, session_log=start))

    def scalars(self, row: Mapping[str, Any]) -> None:
        """Write every float of a metrics row as ``<split>/<name>``."""
        values = [
            Summary.Value(tag=f"{row['split']}/{name}", simple_value=value)
            for name, value in row.items()
            if isinstance(value, float) and name not in ("wall_time", "epoch")
        ]
        self._step = row["step"]
        self._write(Summary(value=values), row["wall_time"])

    def configuration(self, config: Config) -> None:
        """Write the configuration for the HParams page, which shows the first one of a run."""
        self._write(hparams.beginning(config))

    def summary(self, summary: Summary, step: int) -> None:
        """Write a summary of any kind."""
        self._step = step
        self._write(summary)

    def graph(self, graph_def: bytes, step: int) -> None:
        """Write a serialized ``GraphDef``."""
        self._writer.add_event(Event(wall_time=time.time(), step=step, graph_def=graph_def))

    def finished(self) -> None:
        """Tell the HParams page that the run has reached its last step, and flush."""
        self._write(hparams.success())
        self._writer.flush()

    def _write(self, summary: Summary, wall_time: float | None = None) -> None:
        moment = time.time() if wall_time is None else wall_time
        # An earlier step would make TensorBoard drop what was written since.
        self._writer.add_event(Event(wall_time=moment, step=self._step, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
