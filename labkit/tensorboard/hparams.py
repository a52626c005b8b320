"""A run's configuration and end, as TensorBoard's HParams page reads them.

The page reads the metadata of summaries with certain tags, and of each tag only the first one of a run.
``tensorboard.plugins.hparams.summary`` makes the same summaries, but with TensorFlow. No experiment is
declared: without one, TensorBoard itself finds the columns, and shows those first in which the runs differ.
"""

import time
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from labkit.config import Config, fields_by_name

__all__ = ["beginning", "hyperparameters", "success"]


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


def beginning(config: Config) -> Summary:
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


def success() -> Summary:
    """Return the summary that a run ends with when it has reached its last step.

    Other ends aren't written, because the page would still show them after the run was resumed.
    """
    end = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))


def _summary(tag: str, data: HParamsPluginData) -> Summary:
    described = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
