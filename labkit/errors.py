"""Errors that a user can act on."""

import difflib
import importlib.util
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from labkit.plurals import listed

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


def how_to_install(*extras: str) -> str:
    """Return how to add optional parts. No name of an index: ``labkit`` on PyPI is another project."""
    return f"install with: pip install '.[{','.join(extras)}]' in a checkout of labkit"


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
            f"{needed_by} needs {', '.join(missing)}, not installed here; {how_to_install(extra)}"
        )


def installed_version(package: str) -> str | None:
    """Return the version of a package; None if it isn't installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def short(value: Any) -> str:
    """Return a value for a message, as Python writes it: in one line, the middle of a long one left out."""
    try:
        text = " ".join(_REPR.repr(value).split())
    except Exception:  # a number of too many digits, or a class whose own method fails
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def reason_of(error: BaseException) -> str:
    """Return what went wrong, without the system's number of it and the file's name."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def in_a_line(error: BaseException) -> str:
    """Return the kind of an error and what it says; of one in a compiled step, with its place in the code."""
    said = str(error).strip()
    if said.startswith("Graph execution error"):  # the stack follows, then the message
        places = re.findall(r'File "(.+)", line (\d+)', said)
        where = " ({}, line {})".format(*places[-1]) if places else ""
        said = said.split("\n\n")[-1].partition("\n")[0] + where
    return f"{type(error).__name__}: {said}".splitlines()[0]


def unknown_name_error(kind: str, name: Any, known: Iterable[str]) -> InputError:
    """Return an InputError that names the known name that was meant, or the first of those that are known."""
    names = list(known)
    near = nearest(str(name), names)
    hint = f"did you mean {near!r}?" if near else f"known: {listed(names)}"
    return InputError(f"unknown {kind} {short(name)}; {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` misspells, or None.

    Every word has to be like the other's, so that ``batch_size`` isn't taken for ``eval_batch_size``, nor
    ``validate_every_epochs`` for ``validate_every_steps``; and numbers the same, for ``cifar100``.
    """
    found = max(known, key=lambda other: _likeness(name, other), default=None)
    return found if found is not None and _likeness(name, found) >= 0.8 else None


def _likeness(name: str, other: str) -> float:
    """Return 1 for the same words in any order, joined or apart; else that of the least similar words."""
    words, others = (re.findall(r"[^\W_]+", text.lower()) for text in (name, other))
    joined, others_joined = "".join(words), "".join(others)
    if joined == others_joined or sorted(words) == sorted(others):
        return 1.0
    if re.findall(r"\d+", joined) != re.findall(r"\d+", others_joined):
        return 0.0
    if len(words) != len(others):
        whole = difflib.SequenceMatcher(None, joined, others_joined).ratio()
        return whole if whole >= 0.93 else 0.0
    pairs = zip(words, others, strict=True)
    return min((difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs), default=0.0)
