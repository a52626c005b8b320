"""Arguments of Python's functions: their types are checked, and values of NumPy become Python's own."""

import os
from typing import Any

from labkit.errors import InputError, short

MOST = 2**31  # of a number, as for the flags
ALLOWED: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    os.PathLike: "a path",
}


def plain(value: Any) -> Any:
    """Return a NumPy scalar or an array of rank 0 as Python's number, truth value or text.

    What is written to a run's files is made of these. Other values are returned as they are.
    """
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value


def has_type(value: Any, kind: type) -> bool:
    """Return whether ``value`` is of a type, where True is no number and a whole number is also a float."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def argument(name: str, value: Any, kind: type, *, optional: bool = False, allowed: str = "") -> Any:
    """Return the value of an argument in Python's own type.

    Args:
        name: of the argument, or its flag.
        value: as the user gave it.
        kind: ``bool``, ``int``, ``float``, ``str``, or ``os.PathLike`` for a path, which is returned as text.
        optional: whether None is allowed.
        allowed: what may be given, in words; by default named after ``kind``.

    Raises InputError for a value of another type.
    """
    value = plain(value)
    if value is None and optional:
        return None
    if kind is os.PathLike and isinstance(value, os.PathLike):
        value = os.fspath(value)
    good = has_type(value, str if kind is os.PathLike else kind)
    if isinstance(value, str):
        good &= "\0" not in value  # which no file's name may hold
    elif isinstance(value, int | float):
        good &= abs(value) < MOST
    if not good:
        words = allowed or ALLOWED[kind] + (" or None" if optional else "")
        raise InputError(f"{name} is {short(value)}; allowed: {words}")
    return value
