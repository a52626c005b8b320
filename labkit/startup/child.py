"""Child processes that are Python: their command line, and where they find this labkit."""

import os
import sys

__all__ = ["import_path", "python_command"]


def import_path() -> str:
    """Return the PYTHONPATH with which a child imports this labkit, whichever one is installed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def python_command(*arguments: object) -> list[str]:
    """Return the command that runs this Python with ``arguments``, such as ``"-m", "labkit", "train"``.

    ``-P`` keeps the current folder off the module search path: a file there must not stand in for a module.
    """
    return [sys.executable, "-P", *map(str, arguments)]
