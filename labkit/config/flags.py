"""Values of a configuration as the flags of ``labkit train``."""

from collections.abc import Mapping
from typing import Any

from labkit.config.whole import by_field, fields_by_name

__all__ = ["flags_of"]


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Return the arguments that give these fields these values, in the order of the fields.

    Raises InputError for an unknown name. The values aren't checked.

    Example::

        flags_of({"model": "vgg", "nesterov": True, "start_from": None})
        # ["--model", "vgg", "--nesterov", "--start-from", "none"]
    """
    values = by_field(values)
    arguments: list[str] = []
    for name, info in fields_by_name().items():
        if name not in values:
            continue
        value = values[name]
        if isinstance(value, bool):
            arguments.append(info.flag if value else "--no-" + info.flag.removeprefix("--"))
        elif isinstance(value, str) and value.startswith("-"):
            arguments.append(f"{info.flag}={value}")  # or it would be read as a flag
        else:
            arguments += [info.flag, "none" if value is None else str(value)]
    return arguments
