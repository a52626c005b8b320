"""Errors that a user can act on."""

import importlib.util

__all__ = ["InputError", "require_extra"]


class InputError(ValueError):
    """Bad input found before any work starts.

    The message is one line that names the value given, what is allowed, and how to fix it. The command
    line prints it after ``labkit: error:`` and exits with code 2; notebooks show it unchanged.
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
