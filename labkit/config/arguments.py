"""Arguments of Python's functions: their types are checked, and values of NumPy become Python's own."""

import ast
import json
import os
from collections.abc import Mapping
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


def arguments_of(text: str | None) -> dict[str, Any]:
    """Return the arguments that a text names: ``width=64,act=relu`` is ``{"width": 64, "act": "relu"}``.

    A value is a constant as Python writes it, or a bare word. A JSON object is read, too. Raises ValueError
    for anything else.
    """
    if (text or "").lstrip().startswith("{"):
        text = text_of_arguments(json.loads(text or ""))
    try:
        call = ast.parse(f"call({text or ''})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError from None
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError
    values = {}
    for given in call.keywords:
        if given.arg is None or given.arg in values:
            raise ValueError
        value = given.value
        values[given.arg] = value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
    return values


def spelled_arguments(flag: str, text: str) -> str:
    """Return a flag's arguments in one spelling. Raises InputError if ``arguments_of`` refuses the text."""
    try:
        values = arguments_of(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InputError(
            f"{flag} is {short(text)}; allowed: NAME=VALUE, separated by commas, such as "
            "width=64,activation='gelu', or a JSON object"
        ) from None
    return text_of_arguments(values)


def text_of_arguments(values: Mapping[str, Any]) -> str:
    """Return the text of which ``arguments_of`` makes these values, sorted by name."""
    return ",".join(f"{name}={values[name]!r}" for name in sorted(values))
