"""What the trainings of a comparison share, and what each has for itself."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from labkit.config import Config, fields_by_name

__all__ = ["budget_differences", "budget_fingerprint", "budget_of", "shared_fields"]

# What a model's name stands for, and what a comparison decides for each training.
OF_A_RUN = (
    "model",
    "application",
    "num_layers",
    "width_factor",
    "resnet_version",
    "block",
    "seed",
    "job_dir",
)
# A comparison trains in one process.
OF_A_CLUSTER = (
    "sync",
    "worker_hosts",
    "ps_hosts",
    "job_name",
    "task_index",
    "bind",
    "variable_placement",
    "rendezvous_seconds",
    "peer_timeout_seconds",
)
# What another value doesn't make another training, but another measurement of it.
MEASURED_BY = (
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
    """Return the configuration's fields that may be given to a comparison."""
    return tuple(name for name in fields_by_name() if name not in (*OF_A_RUN, *OF_A_CLUSTER))


def budget_of(config: Config) -> dict[str, Any]:
    """Return what decides a training, and how it is measured, but for the model and the seed."""
    identity, values = config.identity(), config.flat()
    return {name: values[name] for name in shared_fields() if name in identity or name in MEASURED_BY}


def budget_fingerprint(config: Config) -> str:
    """Return 8 hexadecimal digits of a hash of ``budget_of``."""
    return hashlib.sha256(json.dumps(budget_of(config), sort_keys=True).encode()).hexdigest()[:8]


def budget_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return, for people, the fields in which two budgets differ.

    A field that ``there`` lacks, since an older labkit wrote it, has its default.
    """
    fields = fields_by_name()
    before = {name: there.get(name, fields[name].default) for name in here}
    return [
        f"{fields[name].flag} is {before[name]!r} there, {value!r} here"
        for name, value in here.items()
        if value != before[name]
    ]
