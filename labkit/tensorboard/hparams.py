"""A run's configuration and end, as TensorBoard's HParams page reads them.

The page reads the metadata of summaries with certain tags, and of each tag only the first one of a run.
``tensorboard.plugins.hparams.summary`` makes the same summaries, but with TensorFlow.
"""

import time
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_BOOL,
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_SUCCESS,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from labkit.config import Config, fields_by_name

__all__ = ["METRICS", "beginning", "success"]

METRICS = ("validation/accuracy", "test/accuracy", "train/loss")  # columns of the table

_TYPES = {bool: DATA_TYPE_BOOL, int: DATA_TYPE_FLOAT64, float: DATA_TYPE_FLOAT64, str: DATA_TYPE_STRING}


def beginning(config: Config) -> list[Summary]:
    """Return the summaries that a run begins with: the table's columns, and the run's values.

    The values are those of all fields that decide what is trained. Fields without a value are left out.
    """
    identity = [info for info in fields_by_name().values() if info.identity]
    columns = Experiment(
        hparam_infos=[HParamInfo(name=info.name, type=_TYPES[info.type]) for info in identity],
        metric_infos=[MetricInfo(name=MetricName(tag=tag)) for tag in METRICS],
    )
    start = SessionStartInfo(start_time_secs=time.time())
    for info in identity:
        value: Any = getattr(getattr(config, info.owner), info.name)
        if isinstance(value, bool):
            start.hparams[info.name].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[info.name].number_value = value
        elif value is not None:
            start.hparams[info.name].string_value = str(value)
    return [
        _summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=columns)),
        _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
    ]


def success() -> Summary:
    """Return the summary that a run ends with when it has reached its last step.

    Other ends aren't written, because the page would still show them after the run was resumed.
    """
    end = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=time.time())
    return _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))


def _summary(tag: str, data: HParamsPluginData) -> Summary:
    value = Summary.Value(
        tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR
    )
    return Summary(value=[value])
