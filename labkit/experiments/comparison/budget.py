"""The budget of a comparison: the fields of the configuration that all its trainings share."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from labkit.config import Config, fields_by_name

__all__ = ["budget_differences", "budget_fingerprint", "budget_of", "shared_fields"]

# Fields that a model's name sets, or that a comparison sets for each training.
RUN_FIELDS = (
    "model",
    "application",
    "num_layers",
    "width_factor",
    "resnet_version",
    "block",
    "seed",
    "job_dir",
)
# Fields of clusters, which a comparison can't use: it trains in one process.
CLUSTER_FIELDS = (
    "sync",
    "worker_hosts",
    "ps_hosts",
    "job_name",
    "task_index",
    "bind",
    "gradient_compression",
    "variable_placement",
    "max_staleness",
    "slow_worker",
    "rendezvous_seconds",
    "peer_timeout_seconds",
    "progress_timeout_seconds",
)
# Fields that affect the measurement, not the training.
MEASUREMENT_FIELDS = (
    "eval_batch_size",
    "data_format",
    "num_gpus",
    "simulate_missing_gpus",
    "variable_strategy",
    "num_intra_threads",
    "num_inter_threads",
    "xla",
    "evaluate_test",
    "test_time_augmentation",
)


def shared_fields() -> tuple[str, ...]:
    """Return the names of the configuration's fields that a comparison accepts."""
    return tuple(name for name in fields_by_name() if name not in (*RUN_FIELDS, *CLUSTER_FIELDS))


def budget_of(config: Config) -> dict[str, Any]:
    """Return the fields, by name, that determine a training and its measurement, without model and seed."""
    identity, values = config.identity(), config.flat()
    return {name: values[name] for name in shared_fields() if name in identity or name in MEASUREMENT_FIELDS}


def budget_fingerprint(config: Config) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of ``budget_of(config)``."""
    return hashlib.sha256(json.dumps(budget_of(config), sort_keys=True).encode()).hexdigest()[:8]


def budget_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a line of text for each field in which two budgets differ.

    Args:
        there: the recorded budget. A field that it lacks, because an older labkit wrote it, has its default.
        here: the requested budget.
    """
    fields = fields_by_name()
    before = {name: there.get(name, fields[name].default) for name in here}
    return [
        f"{fields[name].flag} is {before[name]!r} there, {value!r} here"
        for name, value in here.items()
        if value != before[name]
    ]
