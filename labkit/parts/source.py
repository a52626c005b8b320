"""The source of a function or class that was defined in a notebook or a script, as a file of its own.

The file has what the object uses: imports, constants, and other functions and classes from the same place. So
other processes can rebuild it, and people can read what a run was trained with.
"""

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.errors import InputError, short


def file_of(value: Any) -> Path | None:
    """Return the file of the module in which a function or class can be found by its name.

    None for one that is defined in a notebook, in the script that runs, or inside of a function.
    """
    path = getattr(sys.modules.get(_module_of(value)), "__file__", None) or ""
    return Path(path) if path.endswith(".py") else None


def _module_of(value: Any) -> str:
    """Return the module from which something can be imported by its name; "" if from none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    return module if getattr(sys.modules.get(module), name, None) is value else ""


def source_of(argument: str, *values: Any) -> str:
    """Return the text of a Python file that defines functions or classes under their own names.

    Args:
        argument: that the user gave them as, for the error.
        values: the functions or classes.

    Raises InputError if a source, or something that one uses, can't be written into a file.
    """
    imports: dict[str, str] = {}
    parts: dict[str, str] = {}
    for value in values:
        _add(argument, value.__name__, value, imports, parts)
    return "\n".join(sorted(imports.values())) + "\n\n\n" + "\n\n\n".join(parts.values()) + "\n"


def _add(argument: str, name: str, value: Any, imports: dict[str, str], parts: dict[str, str]) -> None:
    """Add the definition of a name, behind those of the names that it uses."""
    if name in imports or name in parts:
        return
    if isinstance(value, ModuleType):
        imports[name] = f"import {value.__name__}" + _as(name, value.__name__)
    elif home := _module_of(value):
        imports[name] = f"from {home} import {value.__name__}" + _as(name, value.__name__)
    elif inspect.isfunction(value) or inspect.isclass(value):
        parts[name] = ""  # so that a function may call itself
        text = _text(argument, name, value)
        for used, other in _used(value, text).items():
            _add(argument, used, other, imports, parts)
        del parts[name]
        parts[name] = text
    else:
        try:
            same = bool(ast.literal_eval(repr(value)) == value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            same = False
        if not same:
            raise _unwritable(argument, name, value)
        parts[name] = f"{name} = {value!r}"


def _as(name: str, of: str) -> str:
    return "" if name == of else f" as {name}"


def _unwritable(argument: str, name: str, value: Any) -> InputError:
    return InputError(
        f"{argument} uses {name!r}, {short(value)[:60]}, which can't be written into a file for other "
        f"processes; put both into a Python file and write {argument}='FILE.py:NAME', or make it a constant"
    )


def _text(argument: str, name: str, value: Any) -> str:
    try:
        text = _class_text(value) if inspect.isclass(value) else inspect.getsource(value)
        text = textwrap.dedent(text).rstrip()
        ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        raise InputError(
            f"{argument} is {short(value)[:60]}, whose source Python doesn't have; put it into a Python file "
            f"and write {argument}='FILE.py:NAME'"
        ) from None
    if value.__name__ != name or text.startswith("lambda") or "<lambda>" in value.__name__:
        raise InputError(f"{argument} is {short(value)[:60]}; give a function that is defined with def")
    return text


def _class_text(value: type) -> str:
    """Return the source of a class. In a notebook ``inspect`` finds none, but a method knows its cell."""
    methods = [method for method in vars(value).values() if inspect.isfunction(method)]
    if not methods:
        return inspect.getsource(value)
    lines = linecache.getlines(methods[0].__code__.co_filename)
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == value.__name__:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(lines[first - 1 : node.end_lineno])
    return inspect.getsource(value)


def _used(value: Any, text: str) -> dict[str, Any]:
    """Return what a definition takes from around it, by name."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    functions = (
        [value] if inspect.isfunction(value) else [f for f in vars(value).values() if inspect.isfunction(f)]
    )
    around: dict[str, Any] = (
        dict(vars(sys.modules[value.__module__])) if value.__module__ in sys.modules else {}
    )
    for function in functions:
        around |= function.__globals__
    for function in functions:  # what a function around it has defined
        around |= inspect.getclosurevars(function).nonlocals
    own = {value.__name__, "__class__"}
    return {
        name: around[name]
        for name in sorted(names - own)
        if name in around and getattr(builtins, name, None) is not around[name]
    }
