"""Declared fields of a configuration: type, default, help and allowed values in one place."""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.config.arguments import has_type, plain
from labkit.config.spellings import ALIASES
from labkit.errors import InputError, short
from labkit.home import LOCAL_PATH, is_local_path

__all__ = ["GROUPS", "FieldInfo", "FieldOwner", "fields_of", "option"]

# Of the flags, in the order of the help. A field belongs to its owner's group unless it names another.
GROUPS = {
    "run": "length of the run, its directory, checkpoints and evaluation",
    "data": "data set, batch sizes and augmentation",
    "model": "network, precision and batch normalization",
    "optimizer": "optimizer, learning rate, regularization and loss",
    "distribution": "devices, replicas and threads of one process",
    "cluster": "several processes",
    "transfer": "initial weights and frozen layers",
    "logging": "console, TensorBoard and TensorFlow's messages",
}

_CACHE: dict[type, tuple["FieldInfo", ...]] = {}


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] | None = None,
    minimum: float | None = None,
    maximum: float = 2**31 - 1,
    below: float | None = None,
    identity: bool = True,
    is_path: bool = False,
    unset: str = "",
    group: str = "",
    common: bool = False,
    spelled: Callable[[str], str] | None = None,
    acts: str = "",
) -> Any:
    """Declare a field.

    Args:
        default: its value where nobody gives one.
        help: what it does, in sentences that stand alone and don't repeat the default.
        choices, minimum, maximum, below: the allowed values.
        identity: whether another value makes it another run (what is trained).
        is_path: whether it names a file or folder, which must be on this machine.
        unset: what happens where the value is None, in words.
        group: of ``GROUPS``; the owner's where it is left out.
        common: whether it is one of the few that people use first.
        spelled: of a text that is a name: returns it in its one spelling, or raises InputError.
        acts: what another value than the default makes this machine do beside training, such as ``run``; it
            isn't taken from a record without consent (``labkit.parts.trust``).
    """
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "below": below,
        "identity": identity,
        "is_path": is_path,
        "unset": unset,
        "group": group,
        "common": common,
        "spelled": spelled,
        "acts": acts,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class FieldInfo:
    """What a flag or a notebook parameter needs to know of a field."""

    name: str
    owner: str
    type: type
    optional: bool
    default: Any
    help: str
    choices: tuple[Any, ...] | None
    minimum: float | None
    maximum: float
    below: float | None
    identity: bool
    is_path: bool
    unset: str
    group: str
    common: bool
    aliases: tuple[str, ...]
    spelled: Callable[[str], str] | None
    acts: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_in_words(self) -> str:
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return self.unset or "none" if self.default is None else str(self.default)

    @property
    def allowed(self) -> str:
        """Return the allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        kind = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}[self.type]
        if self.is_path:
            kind = LOCAL_PATH
        if self.minimum is not None:
            kind += f" of at least {self.minimum:g}"
        if self.below is not None:
            kind += f" below {self.below:,}"
        elif self.type is int:
            kind += f" and at most {self.maximum:,.0f}"
        return kind + (" or None" if self.optional and not self.is_path else "")

    def check(self, value: Any) -> Any:
        """Return ``value`` in the field's type. Raises InputError naming flag, value and what is allowed."""
        value = plain(value)
        if value is None and self.optional:
            return None
        if self.type is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        good = has_type(value, self.type) and not (self.type is str and "\0" in value)
        if good and self.type is float:
            good = abs(value) < 2**1023  # beyond, a whole number is no float
            value = float(value) if good else value
        if good and self.type is float:
            good = math.isfinite(value)
        if good and self.is_path:
            good = is_local_path(value)
        if good and self.choices is not None:
            good = value in self.choices
        if good and self.minimum is not None:
            good = value >= self.minimum
        if good and self.below is not None:
            good = value < self.below
        if good and self.type is int:
            good = value <= self.maximum
        if not good:
            raise InputError(f"{self.flag} is {short(value)}; allowed: {self.allowed}")
        return value if self.spelled is None else self.spelled(value)


class FieldOwner:
    """Checks every field of a frozen dataclass against its declaration."""

    def __post_init__(self) -> None:
        for info in fields_of(type(self)):
            object.__setattr__(self, info.name, info.check(getattr(self, info.name)))

    def require_defaults(self, names: typing.Iterable[str], where: str, reason: str) -> None:
        """Raise InputError where one of the named fields, which ``where`` doesn't have, was given a value."""
        for info in fields_of(type(self)):
            value = getattr(self, info.name)
            if info.name in names and value != info.default:
                raise InputError(f"{info.flag} is {value!r}; allowed {where}: {info.default!r} ({reason})")


def fields_of(owner: type) -> tuple[FieldInfo, ...]:
    """Return the fields that a configuration class declares; ``DataConfig`` is the owner ``data``."""
    if owner not in _CACHE:
        name = owner.__name__.removesuffix("Config").lower()
        hints = typing.get_type_hints(owner)
        _CACHE[owner] = tuple(
            _field_info(field, name, hints[field.name]) for field in dataclasses.fields(owner)
        )
    return _CACHE[owner]


def _field_info(field: dataclasses.Field, owner: str, hint: Any) -> FieldInfo:
    optional = isinstance(hint, types.UnionType)
    kind = next(part for part in typing.get_args(hint) if part is not type(None)) if optional else hint
    metadata = {**field.metadata, "group": field.metadata["group"] or owner}
    aliases = tuple(ALIASES.get(field.name, "").split())
    return FieldInfo(field.name, owner, kind, optional, field.default, aliases=aliases, **metadata)
