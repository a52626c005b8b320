"""Errors that a user can act on."""

__all__ = ["InputError"]


class InputError(ValueError):
    """Bad input found before any work starts.

    The message is one line that names the value given, what is allowed, and how to fix it. The command
    line prints it after ``labkit: error:`` and exits with code 2; notebooks show it unchanged.
    """
