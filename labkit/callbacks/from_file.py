"""Check the callbacks that a user gives, and read them from a Python file (``--callbacks``)."""

import difflib
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.callbacks.callback import METHODS, Callback
from labkit.errors import InputError

__all__ = ["callbacks_of", "checked_callbacks"]


def checked_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return ``callbacks`` as a tuple. Raises InputError where one isn't a ``Callback`` object."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise InputError(f"callbacks is {_name(callbacks)}; allowed: a list of labkit.Callback objects")
    for callback in callbacks:
        if isinstance(callback, type) and issubclass(callback, Callback):
            raise InputError(
                f"callbacks holds the class {callback.__name__}; allowed: objects, {callback.__name__}()"
            )
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks holds {_name(callback)}; allowed: objects of classes derived from labkit.Callback"
            )
        _check_methods(type(callback))
    return tuple(callbacks)


def _check_methods(kind: type) -> None:
    """Raise InputError for a method that looks like one of ``Callback``, and would never be called."""
    for name in set(dir(kind)) - set(METHODS):
        if name.startswith(("on_", "before_", "after_")) and callable(getattr(kind, name)):
            near = difflib.get_close_matches(name, METHODS, n=1, cutoff=0)[0]
            raise InputError(
                f"callback {kind.__name__} has a method {name!r}; did you mean {near!r}? (only methods of "
                "labkit.Callback may begin with on_, before_ or after_)"
            )


def _name(value: Any) -> str:
    return f"an object of {type(value).__name__}"


def callbacks_of(path: Path, content: bytes) -> tuple[Callback, ...]:
    """Run a Python file and return its list ``callbacks``. Raises InputError where that isn't possible.

    ``content``: of the file. It isn't read again: what was checked is what runs.
    """
    module = ModuleType(f"labkit_callbacks_{hashlib.sha256(content).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and pickle look for the classes of the file
    names = vars(module)
    try:
        exec(compile(content, str(path), "exec"), names)
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"--callbacks {path} can't be run: {message}") from None
    if "callbacks" not in names:
        raise InputError(f"--callbacks {path} defines no callbacks; write: callbacks = [MyCallback()]")
    try:
        return checked_callbacks(names["callbacks"])
    except InputError as error:
        raise InputError(f"--callbacks {path}: {error}") from None
