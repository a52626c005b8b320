"""Declared fields of a configuration: type, default, help and allowed values in one place; and arguments of
functions, whose types are checked, and whose NumPy values become Python's own.
"""

import ast
import dataclasses
import functools
import json
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.config.spellings import ALIASES
from labkit.errors import InputError, short
from labkit.home import LOCAL_PATH, is_local_path
from labkit.plurals import listed

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

# What a field may name in a file: a function or class of Python, or a saved Keras model.
CODE = re.compile(r"(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)|(?P<saved>.+\.keras)", re.DOTALL)
IN_A_FILE = "FILE.py:NAME"


def code_and_names(text: str, names: Collection[str]) -> tuple[str | None, list[str]]:
    """Return the part of a text ``FILE.py:NAME,auc`` that is none of ``names``, and those beside it.

    The part is None where there is none but names. A file's own name may have commas.
    """
    parts, before, after = text.split(","), list[str](), list[str]()
    while parts and parts[0].strip() in names:
        before.append(parts.pop(0).strip())
    while parts and parts[-1].strip() in names:
        after.insert(0, parts.pop().strip())
    return ",".join(parts).strip() if parts else None, list(dict.fromkeys([*before, *after]))


MEASURED = "auto"  # in place of a number that labkit train measures
MOST_LISTED = 24  # choices in an error

# Why a fork of a run can't change a field: what the run has at a step follows from it.
OF_THE_ORDER = "the rows and the order of the images before the fork are the parent's"
OF_THE_NETWORK = "the checkpoint holds the weights of the parent's network"
OF_THE_OPTIMIZER = "the checkpoint holds the state of the parent's optimizer"
OF_ONE_PROCESS = "it is of one process; give it to the command that continues the fork"


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """A field of a configuration: what its flag, a notebook's parameter and an experiment need to know.

    Attributes:
        name, owner, type, optional, default, aliases: as its class and ``spellings`` have them.
        help: what it does, in sentences that stand alone and don't repeat the default.
        choices, minimum, maximum, below: the allowed values.
        is_path: whether it names a file or folder, which must be on this machine.
        is_code: whether it may name something in a file, too: ``FILE.py:NAME``, of which a run keeps a copy.
        may_be_saved: whether that may be a ``.keras`` file.
        beside: names that may stand beside that, separated by commas.
        of_code: the field that names what this one has the arguments of, such as ``width=64``.
        spelled: of a text that is a name: returns it in its one spelling, or raises InputError.
        words: the allowed values in words, where these attributes don't tell them.
        unset: what happens where the value is None, in words.
        group: of ``GROUPS``; the owner's where it is left out.
        common: whether it is one of the few that people use first.
        role: what another value changes: ``training`` makes it another run; ``measurement`` is its speed, or
            what is measured of it; ``observation`` what is shown or recorded beside the metrics; ``task``
            which task of a cluster this process is; ``other`` none of these.
        only_with: another field of the same owner, and its values with which alone this one has an effect.
        fork: why a fork of a run can't change it; "" where it can.
        measured: whether labkit train also takes ``auto``, and finds the value itself before the run begins.
        synchronous: whether asynchronous training doesn't have it.
        acts: what another value than the default makes this machine do beside training, such as ``run``; it
            isn't taken from a record without consent (``labkit.parts.trust``).
    """

    name: str
    owner: str
    type: type
    optional: bool
    default: Any
    aliases: tuple[str, ...]
    help: str
    choices: tuple[Any, ...] | None = None
    minimum: float | None = None
    maximum: float = 2**31 - 1
    below: float | None = None
    is_path: bool = False
    is_code: bool = False
    may_be_saved: bool = False
    beside: tuple[str, ...] = ()
    of_code: str = ""
    spelled: Callable[[str], str] | None = None
    words: str = ""
    unset: str = ""
    group: str
    common: bool = False
    role: str = "training"
    only_with: tuple[Any, ...] = ()
    fork: str = ""
    measured: bool = False
    synchronous: bool = False
    acts: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def identity(self) -> bool:
        """Whether another value makes it another run."""
        return self.role == "training"

    def file_of(self, value: Any) -> str | None:
        """Return the file that a value names: a path, or that of a function in it; None if it names none."""
        return self.code_of(value) or (value if self.is_path else None)

    def code_of(self, value: Any) -> str | None:
        """Return the file of a value ``FILE.py:NAME``, or a saved model; None for other values."""
        if not self.is_code or not isinstance(value, str):
            return None
        named = code_and_names(value, self.beside)[0] if self.beside else value
        found = CODE.fullmatch(named or "")
        return found["path"] or (found["saved"] if self.may_be_saved else None) if found else None

    def canonical(self, value: Any) -> Any:
        """Return a value without the folder of the file of code that it names, which may be anywhere."""
        return os.path.basename(value) if self.code_of(value) is not None else value

    def arguments(self, value: Any) -> list[str]:
        """Return the words that give it a value: ``--num-layers 20``, ``--no-nesterov``."""
        if isinstance(value, bool):
            return [self.flag if value else f"--no-{self.flag[2:]}"]
        if isinstance(value, str) and value.startswith("-"):
            return [f"{self.flag}={value}"]  # or it would be read as a flag
        return [self.flag, "none" if value is None else str(value)]

    def spell(self, value: Any) -> str:
        """Return ``arguments`` as one text."""
        return " ".join(self.arguments(value))

    @property
    def default_in_words(self) -> str:
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return self.unset or "none" if self.default is None else str(self.default)

    @property
    def allowed(self) -> str:
        """Return the allowed values in words."""
        if self.words:
            return self.words
        if self.choices:
            own = f", or {IN_A_FILE}" if self.is_code else ", or auto (labkit train)" if self.measured else ""
            names = [str(choice) for choice in self.choices]
            many = len(names) > MOST_LISTED  # --help-all has all
            return "one of " + listed(names, MOST_LISTED // 2 if many else MOST_LISTED) + own
        kind = LOCAL_PATH if self.is_path else ALLOWED[self.type]
        if self.minimum is not None:
            kind += f" of at least {self.minimum:g}"
        if self.below is not None:
            kind += f" below {self.below:,}"
        elif self.type is int:
            kind += f" and at most {self.maximum:,.0f}"
        return kind + (" or None" if self.optional and not self.is_path else "")

    def from_flag(self, text: str | bool) -> Any:
        """Return what a flag's text stands for, in the field's type. Its range isn't checked."""
        if isinstance(text, bool) or (self.measured and text == MEASURED):
            return text
        if self.optional and text.lower() == "none":
            return None
        try:
            return self.type(text)
        except ValueError:
            raise InputError(f"{self.flag} is {short(text)}; allowed: {self.allowed}") from None

    def check(self, value: Any) -> Any:
        """Return ``value`` in the field's type. Raises InputError naming flag, value and what is allowed."""
        value = plain(value)
        if value is None and self.optional:
            return None
        if self.type is str and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, Mapping) and (self.of_code or self.spelled is not None):
            value = text_of_arguments(value) if self.of_code else json.dumps(value, default=str)
        good = has_type(value, self.type) and not (self.type is str and "\0" in value)
        if good and self.type is float:
            good = abs(value) < 2**1023  # beyond, a whole number is no float
            value = float(value) if good else value
        if good and self.is_path:
            good = is_local_path(value)
        if good and self.choices is not None:
            good = value in self.choices or (self.is_code and self.file_of(value) is not None)
        if good and self.minimum is not None:
            good = value >= self.minimum
        if good and self.below is not None:
            good = value < self.below
        if good and self.type is int:
            good = value <= self.maximum
        if not good:
            measured = self.measured and isinstance(value, str) and value == MEASURED
            hint = " (labkit train alone measures it)" if measured else ""
            raise InputError(f"{self.flag} is {short(value)}{hint}; allowed: {self.allowed}")
        if self.of_code:
            return spelled_arguments(self.flag, value) or None
        return value if self.spelled is None else self.spelled(value)


class FieldOwner:
    """Checks every field of a frozen dataclass against its declaration."""

    def __post_init__(self) -> None:
        known = {info.name: info for info in fields_of(type(self))}  # type: ignore[arg-type]
        for info in known.values():
            object.__setattr__(self, info.name, info.check(getattr(self, info.name)))
        for info in known.values():
            value = getattr(self, info.name)
            if info.only_with and value != info.default:
                other, found = known[info.only_with[0]], getattr(self, info.only_with[0])
                if found not in info.only_with[1:]:
                    needed = " or ".join(other.spell(wanted) for wanted in info.only_with[1:])
                    raise InputError(
                        f"{info.flag} is {value!r}; allowed with {other.spell(found)}: {info.default!r} "
                        f"(it needs {needed})"
                    )


def option(default: Any, help: str, **declared: Any) -> Any:
    """Declare a field: its default, its help, and any of the other attributes of ``FieldInfo``."""
    return dataclasses.field(default=default, metadata={"help": help, **declared})


@functools.cache
def fields_of(owner: type) -> tuple[FieldInfo, ...]:
    """Return the fields that a configuration class declares; ``DataConfig`` is the owner ``data``."""
    name = owner.__name__.removesuffix("Config").lower()
    hints = typing.get_type_hints(owner)
    return tuple(_field_info(field, name, hints[field.name]) for field in dataclasses.fields(owner))


def _field_info(field: dataclasses.Field, owner: str, hint: Any) -> FieldInfo:
    optional = isinstance(hint, types.UnionType)
    return FieldInfo(
        name=field.name,
        owner=owner,
        type=next(part for part in typing.get_args(hint) if part is not type(None)) if optional else hint,
        optional=optional,
        default=field.default,
        aliases=tuple(ALIASES.get(field.name, "").split()),
        **{"group": owner, **field.metadata},
    )
