"""Write a run's metrics and configuration as TensorBoard events, and the dump of its Debugger V2.

TensorBoard's HParams page reads the metadata of summaries with certain tags, and of each tag only the first
one of a run. ``tensorboard.plugins.hparams.summary`` makes the same summaries, but with TensorFlow. No
experiment is declared: without one, TensorBoard itself finds the columns, and shows those first in which the
runs differ.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from labkit.config import Config, fields_by_name
from labkit.run_directory import RunDirectory
from labkit.tensorboard.log_folder import DEBUGGER_FOLDER

# Of each tensor: its shape, and how many of its values are NaN, infinite, negative, zero and positive.
DUMP_MODE = "FULL_HEALTH"
# The last ones are written when the training ends: about 80 steps of ResNet-20, 26 MB. TensorFlow's own 1,000
# are less than a step.
DUMPED_TENSORS = 100_000


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
        self._write(_beginning(config))

    def summary(self, summary: Summary, step: int) -> None:
        """Write a summary of any kind."""
        self._step = step
        self._write(summary)

    def graph(self, graph_def: bytes, step: int) -> None:
        """Write a serialized ``GraphDef``."""
        self._writer.add_event(Event(wall_time=time.time(), step=step, graph_def=graph_def))

    def finished(self) -> None:
        """Tell the HParams page that the run has reached its last step, and flush.

        Other ends aren't written, because the page would still show them after the run was resumed.
        """
        end = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
        self._write(_summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)))
        self._writer.flush()

    def _write(self, summary: Summary, wall_time: float | None = None) -> None:
        moment = time.time() if wall_time is None else wall_time
        # An earlier step would make TensorBoard drop what was written since.
        self._writer.add_event(Event(wall_time=moment, step=self._step, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def hyperparameters(config: Config) -> dict[str, bool | float | str]:
    """Return the values that decide what is trained, by the names of their fields.

    These are the common ones and those that aren't the default. A field whose value is None is left out.
    """
    found: dict[str, Any] = {}
    for info in fields_by_name().values():
        value = getattr(getattr(config, info.owner), info.name)
        if info.identity and value is not None and (info.common or value != info.default):
            found[info.name] = value
    return found


def _beginning(config: Config) -> Summary:
    """Return the summary that a run begins with: its hyperparameters."""
    start = SessionStartInfo(start_time_secs=time.time())
    for name, value in hyperparameters(config).items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, str):
            start.hparams[name].string_value = value
        else:
            start.hparams[name].number_value = value
    return _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))


def _summary(tag: str, data: HParamsPluginData) -> Summary:
    described = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])


@contextmanager
def debugger_dump(run: RunDirectory) -> Iterator[None]:
    """Dump the operations that run within the block into the run's events, in place of an earlier dump.

    The dump holds what was traced within the block, and the last ``DUMPED_TENSORS`` tensors.
    """
    import tensorflow as tf

    folder = run.events_path / DEBUGGER_FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # TensorBoard refuses a folder with the dumps of two processes
    tf.debugging.experimental.enable_dump_debug_info(
        str(folder), DUMP_MODE, circular_buffer_size=DUMPED_TENSORS
    )
    try:
        yield
    finally:
        tf.debugging.experimental.disable_dump_debug_info()
