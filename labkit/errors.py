"""Errors that a user can act on."""

import difflib
import importlib.util
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["DiskFailure", "InputError", "listed", "require_extra", "short", "unknown_name_error"]

_MOST_LISTED = 100
_LONGEST = 120  # characters of a value in a message
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _LONGEST


class InputError(ValueError):
    """Bad input found before any work starts.

    The message is one line that names the value given, what is allowed, and how to fix it. The command
    line prints it after ``labkit: error:`` and exits with code 2; notebooks show it unchanged.
    """


class DiskFailure(Exception):
    """The disk of a run is full, can't be written to, or fails. The run is as it was before.

    The message is one line that says what happened, where, and how to go on. The command line prints it and
    exits with code 1.
    """


def require_extra(extra: str, modules: tuple[str, ...], needed_by: str) -> None:
    """Check that the packages of an optional part of labkit are installed. Imports none of them.

    Args:
        extra: the name in pyproject.toml's optional dependencies that installs ``modules``.
        modules: top-level modules, called as their packages are.
        needed_by: the command or flag that needs them, as the user wrote it.

    Raises InputError where one can't be found.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{needed_by} needs {', '.join(missing)}, not installed here; "
            f"install with: pip install 'labkit[{extra}]'"
        )


def short(value: Any) -> str:
    """Return a value for a message, as Python writes it: in one line, the middle of a long one left out."""
    try:
        text = " ".join(_REPR.repr(value).split())
    except Exception:  # a number of too many digits, or a class whose own method fails
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def unknown_name_error(kind: str, name: Any, known: Iterable[str]) -> InputError:
    """Return an InputError that names the nearest known name, or those that are known."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {listed(names)}"
    return InputError(f"unknown {kind} {short(name)}; {hint}")


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: all, or the first hundred and how many more there are."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
