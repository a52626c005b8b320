"""The space of a search: the settings that vary, and the values that each of them may have."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config import Config, by_field, fields_by_name, with_network
from labkit.config.fields import FieldInfo, arguments_of, text_of_arguments
from labkit.errors import InputError, short
from labkit.experiments.search.files import Dimension
from labkit.parts.code import with_whole_paths
from labkit.parts.objects import as_files

_FORMS = "A,B,C for choices; int:LOW:HIGH, float:LOW:HIGH, log:LOW:HIGH or logint:LOW:HIGH for a range"
_RANGE = re.compile(r"(int|float|log|logint):([^:]*):([^:]*)")
# Why trials couldn't be compared that differ in these settings.
_FIXED = {
    "seed": "a seed is chance, not a setting; --seeds says how many each trial has",
    "best_by": "all trials are compared by one metric, --objective",
    **dict.fromkeys(("dataset", "fold"), "all trials need the same data"),
    **dict.fromkeys(("train_steps", "epochs", "steps_range"), "all trials need the same length"),
    **dict.fromkeys(("validate_every_steps", "early_stopping_patience"), "all trials need the same steps"),
}


def parse_space(space: Any, given: Mapping[str, Any]) -> dict[str, Dimension]:
    """Return the dimensions of a space by name: that of a field, or ``model_arguments.width``.

    Args:
        space: of each setting, by name or alias, a text as on the command line, or a list of choices, which
            may be objects where ``labkit.train`` takes them.
        given: the fields that are the same for all trials.

    Raises InputError for an unknown setting, one that can't be searched or is given, and for bad values.
    """
    if not isinstance(space, Mapping) or not space:
        what = "is missing" if isinstance(space, Mapping | None) else f"is {short(space)}"
        raise InputError(f"--space {what}; name settings and their values: --space learning_rate=log:0.01:1")
    parsed: dict[str, Dimension] = {}
    for name, values in space.items():
        choices = values if isinstance(values, Iterable) else [values]
        if not isinstance(name, str):
            raise InputError(f"--space has {short(name)}; allowed: names of settings, as texts")
        field, _, argument = name.partition(".")
        texts = values.split(",") if isinstance(values, str) else [_text(field, one) for one in choices]
        (field,) = by_field({field: None})
        info, called = fields_by_name()[field], f"{field}.{argument}" if argument else field
        problem = ""
        if field in _FIXED:
            problem = f"{_FIXED[field]}; leave it out"
        elif bool(argument) != bool(info.of_code):
            problem = f"write {field}{'.NAME' * bool(info.of_code)}=VALUES"
        elif info.role != "training" or info.group == "cluster":
            problem = "another value makes no other training; leave it out"
        elif called in {*parsed, *given, *(f"{field}.{one}" for one in _arguments(given.get(field), info))}:
            problem = "it is given twice; leave it out"
        try:
            if problem:
                raise InputError(problem)
            parsed[called] = _dimension(texts, None if argument else info)
        except (ValueError, SyntaxError) as error:
            told = error if isinstance(error, InputError) else f"allowed: {_FORMS}"
            raise InputError(f"--space {called}={','.join(texts)}: {told}") from None
    return parsed


def code_folder() -> Path:
    """Return where searches keep files of objects that they were given, at paths that follow from these."""
    return home.home() / "searches" / "code"


def _text(field: str, choice: Any) -> str:
    """Return a choice as on the command line. Raises InputError for an object that sets several flags."""
    with as_files({field: choice}, code_folder()) as given:
        if len(given) > 1:
            others = " and ".join(sorted(given.keys() - {field}))
            raise InputError(
                f"--space {field} has {short(choice)[:60]}, which sets {others}, too; "
                "name its class, and give its settings beside the space"
            )
        try:
            return str(given[field])
        except Exception:  # of a class of somebody's own
            raise InputError(f"--space {field} has {short(choice)}; allowed: texts and numbers") from None


def _arguments(value: Any, info: FieldInfo) -> Mapping[str, Any]:
    """Return the arguments of a part that a field's value has; none where the field has no arguments."""
    if not info.of_code:
        return {}
    return arguments_of(value) if isinstance(value, str) else value or {}


def _dimension(texts: Sequence[str], info: FieldInfo | None) -> Dimension:
    """Return the values that choices, or a single range, name.

    Args:
        texts: the choices.
        info: of their field; None for an argument of a part.

    Raises InputError, and ValueError or SyntaxError for what has none of the forms.
    """
    found = _RANGE.fullmatch(",".join(texts))
    if not found:
        choices = tuple(_value(one.strip(), info) for one in texts)
        if len(choices) < 2 or len(set(map(repr, choices))) < len(choices):
            raise InputError("allowed: at least two values, each once; a single one is a flag of its own")
        return Dimension("choice", choices=choices)
    kind, *ends = found.groups()
    whole = "int" in kind or (info is not None and info.type is int)
    if info is not None and (info.type not in (int, float) or (whole and kind == "float")):
        raise InputError(f"allowed for {info.flag}: {info.allowed}")
    low, high = (_value(end, info) if info else (int if whole else float)(end) for end in ends)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError("allowed: two numbers, the lower one first")
    if kind.startswith("log") and low <= 0:
        raise InputError("allowed on a logarithmic scale: numbers above 0")
    return Dimension("int" if whole else "float", low, high, kind.startswith("log"))


def _value(text: str, info: FieldInfo | None) -> Any:
    """Return what a text stands for, a file of code by its whole path. Limits aren't checked."""
    if info is None:
        return arguments_of(f"value={text}")["value"]
    if info.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    value = info.from_flag(text)
    if info.code_of(value) is None:
        return value
    return with_whole_paths(Config.from_flat({info.name: value})).flat()[info.name]


def with_values(flags: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a trial: those of all trials, and its own values.

    A network's name, such as resnet20, becomes its fields; an argument goes to the others of its part. Raises
    InputError for an unknown network, and for one whose name holds what is given, too.
    """
    given, known = dict(flags), fields_by_name()
    for name, value in values.items():
        field, _, argument = name.partition(".")
        if argument:
            value = text_of_arguments({**_arguments(given.get(field), known[field]), argument: value})
        given[field] = value
    return with_network(given)
