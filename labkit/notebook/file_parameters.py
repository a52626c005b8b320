"""Values for a notebook's parameters, checked before a kernel starts.

Papermill sets any name that it is given, and only warns of those that the notebook doesn't have.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.config import by_field, fields_by_name
from labkit.errors import InputError, unknown_name_error
from labkit.notebook.parameters import BESIDE_CONFIG, assignments, parameters_from_values

IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    list: "a list, such as '[1, 2]'",
    dict: "a dict, such as '{\"a\": 1}'",
    tuple: "a tuple, such as '(1, 2)'",
}
KINDS = {kind.__name__: kind for kind in IN_WORDS} | {"List": list, "Dict": dict, "Tuple": tuple}


@dataclass(frozen=True)
class Declared:
    """A parameter as the notebook's parameters cell declares it.

    ``kind``: its type; None where the cell doesn't tell. ``optional``: None is allowed. ``annotated``: the
    cell names the type. ``default``: its value; Ellipsis where the cell computes it.
    """

    name: str
    kind: type | None
    optional: bool
    annotated: bool
    default: Any


def declared_parameters(notebook: Any) -> dict[str, Declared]:
    """Return the parameters of the first cell with the tag ``parameters``, by name; none without it."""
    source = _parameters_cell(notebook)
    if source is None:
        return {}
    try:
        found = assignments(source)
    except SyntaxError:  # no Python, or a magic: papermill reads it line by line
        return _as_papermill_reads(notebook)
    return {
        name: _declared(name, annotation, ast.unparse(value) if value else "...")
        for name, (annotation, value) in found.items()
    }


def _parameters_cell(notebook: Any) -> str | None:
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            return str(cell.source)
    return None


def _as_papermill_reads(notebook: Any) -> dict[str, Declared]:
    from papermill import inspect_notebook

    try:
        seen = inspect_notebook(notebook)
    except ValueError:  # its kernel or language isn't named
        return {}
    return {
        name: _declared(name, parameter["inferred_type_name"], parameter["default"])
        for name, parameter in seen.items()
    }


def _declared(name: str, annotation: str, default: str) -> Declared:
    try:
        value = ast.literal_eval(default)
    except (ValueError, SyntaxError):
        value = ...
    bare = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$", r"\1", annotation)
    bare = re.sub(r"\s*\|\s*None\b|\bNone\s*\|\s*", "", bare)
    optional = bare != annotation or value is None
    kind = KINDS.get(re.sub(r"\[.*", "", bare))
    if kind is not None:
        return Declared(name, kind, optional, True, value)
    known = type(value) if annotation in ("", "None") and type(value) in IN_WORDS else None
    return Declared(name, known, optional, False, value)


def values_from_text(notebook: Any, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return values for the parameters in the type that each has, from texts such as those of a shell.

    Raises InputError for a name that is given twice, and for what ``check_given`` refuses.
    """
    kinds = {name: parameter.kind for name, parameter in declared_parameters(notebook).items()}
    if takes_flags(notebook):
        for name, info in fields_by_name().items():
            kinds |= dict.fromkeys((name, *info.aliases), info.type)
    values: dict[str, Any] = {}
    for name, text in given:
        if name in values:
            raise InputError(f"{name} is given twice; leave one out")
        values[name] = _value(text, kinds.get(name))
    check_given(notebook, values)
    return values


def _value(text: str, kind: type | None) -> Any:
    """Return what ``text`` spells in Python, where that is of ``kind``; otherwise the text as it is."""
    if kind in (list, dict, tuple):
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return list(value) if isinstance(value, tuple) else value  # papermill writes no tuples
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words and (kind is not str or text == "None"):
        return words[text.lower()]
    for number in () if kind is str else (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def check_given(notebook: Any, values: Mapping[str, Any]) -> None:
    """Check values for the parameters of a notebook as far as it can be told without running it.

    Where the notebook reads its parameters with ``read_parameters``, each flag of ``labkit train`` is allowed
    and the whole configuration is checked.

    Raises InputError.
    """
    if values and _parameters_cell(notebook) is None:
        raise InputError(
            f"{next(iter(values))} is given, but the notebook has no parameters; give the cell that "
            "sets them the tag 'parameters'"
        )
    declared = declared_parameters(notebook)
    if takes_flags(notebook):
        own = {name: parameter.default for name, parameter in declared.items()}
        if ... not in own.values():
            parameters_from_values(own, values)
            return
        values = by_field(values, beside=BESIDE_CONFIG)  # only the kernel knows the rest
    for name, value in values.items():
        if name in declared:
            _check_type(declared[name], value)
        elif not takes_flags(notebook):
            raise unknown_name_error("parameter", name, declared)


def _check_type(declared: Declared, value: Any) -> None:
    kind = declared.kind
    if kind is None or (value is None and declared.optional):
        return
    number = kind is float or (kind is int and not declared.annotated)  # `x = 1` may well be given 0.5
    allowed = (int, float) if number else (list, tuple) if kind is tuple else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        words = "a number" if number else IN_WORDS[kind]
        raise InputError(f"{declared.name} is {value!r}; allowed: {words}{' or None' * declared.optional}")


def takes_flags(notebook: Any) -> bool:
    """Return whether the notebook's parameters are flags of ``labkit train``."""
    source = _parameters_cell(notebook) or ""
    watched = any("watch_parameters()" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    return watched and source.lstrip().startswith("# Parameters:")
