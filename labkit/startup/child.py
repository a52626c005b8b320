"""The command line of a child process that is Python. Every one that labkit starts begins with this."""

import sys

__all__ = ["python_command"]


def python_command(*arguments: object) -> list[str]:
    """Return the command that runs this Python with ``arguments``, such as ``"-m", "labkit", "train"``.

    ``-P`` keeps the current folder off the module search path: a file there must not stand in for a module.
    """
    return [sys.executable, "-P", *map(str, arguments)]
