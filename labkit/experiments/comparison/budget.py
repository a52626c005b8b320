"""The budget of a comparison: the fields of the configuration that all its trainings share."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from labkit.config import Config, fields_by_name
from labkit.config.architectures import NAMED_FIELDS

# Fields that a comparison sets for each training; the others are those of a model's name.
OF_EACH = ("seed", "job_dir")


def shared_fields() -> tuple[str, ...]:
    """Return the names of the fields that a comparison accepts: it trains several models in one process."""
    own = {*OF_EACH, *NAMED_FIELDS}
    return tuple(
        name for name, info in fields_by_name().items() if name not in own and info.group != "cluster"
    )


def budget_of(config: Config) -> dict[str, Any]:
    """Return the fields, by name, that determine a training and its measurement, without model and seed."""
    known, values = fields_by_name(), config.flat()
    return {name: values[name] for name in shared_fields() if known[name].role in ("training", "measurement")}


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
