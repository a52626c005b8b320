"""The configuration of a run: one frozen dataclass per owner, checked when it is made.

Command-line flags and notebook parameters are derived from these fields (``fields_by_name``), so a
name, its type, default and help text stand here and nowhere else. Field names are unique over all
owners: a run can be described by a flat mapping of names to values.
"""

from labkit.config.config import Config, by_field, field_aliases, fields_by_name, with_network
from labkit.config.data import DataConfig
from labkit.config.distribution import DistributionConfig
from labkit.config.model import ModelConfig, TransferConfig
from labkit.config.optimizer import OptimizerConfig
from labkit.config.run import RunConfig

__all__ = [
    "Config",
    "DataConfig",
    "DistributionConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "TransferConfig",
    "by_field",
    "field_aliases",
    "fields_by_name",
    "with_network",
]
