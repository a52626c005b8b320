"""The folders of data sets and runs. They don't depend on the current working directory."""

import os
from pathlib import Path

__all__ = ["data_home", "home", "runs_home"]


def home() -> Path:
    """Return the folder that holds ``data/`` and ``runs/``.

    It is ``LABKIT_HOME`` if that is set; otherwise the checkout that labkit is imported from (recognised by
    its ``pyproject.toml``); otherwise ``~/.labkit``. This function doesn't create the folder.
    """
    named = os.environ.get("LABKIT_HOME")
    if named:
        return Path(named).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return checkout
    return Path.home() / ".labkit"


def data_home() -> Path:
    """Return the default folder of prepared data sets, ``<home>/data``."""
    return home() / "data"


def runs_home() -> Path:
    """Return the default folder of run directories, ``<home>/runs``."""
    return home() / "runs"
