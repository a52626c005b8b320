"""The folders of data sets, runs, dashboard and notebooks. None depends on the current working directory."""

import os
from pathlib import Path

from labkit.errors import InputError

LOCAL_PATH = "a path on this machine, not an address such as gs://bucket"


def is_local_path(text: str) -> bool:
    """Return whether ``text`` is a path: not empty, and no address, which would become a folder ``gs:``."""
    return bool(text) and "://" not in text


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` with ``~`` or ``~user`` replaced by the user's home.

    Raises InputError if there is no such user.
    """
    found = Path(os.path.expanduser(path))
    if str(found).startswith("~"):
        raise InputError(
            f"{str(found)!r} is in the home of a user that this machine doesn't have; give the whole path, "
            f"or {'./' + str(found)!r} for a folder of that name"
        )
    return found


def checkout() -> Path | None:
    """Return the checkout that labkit is imported from, recognised by its ``pyproject.toml``.

    None where labkit was installed from a wheel.
    """
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None


def shipped(folder: str) -> Path:
    """Return the folder ``app`` (the dashboard) or ``notebooks``, which are no part of the package.

    A wheel has them in ``labkit/shipped``. This function doesn't check that the folder is there.
    """
    return (checkout() or Path(__file__).with_name("shipped")) / folder


def home() -> Path:
    """Return the folder that holds ``data/`` and ``runs/``.

    It is ``LABKIT_HOME`` if that is set; otherwise the checkout that labkit is imported from; otherwise
    ``~/.labkit``. This function doesn't create the folder.

    Raises InputError if ``LABKIT_HOME`` is no local path.
    """
    named = os.environ.get("LABKIT_HOME")
    if named:
        if not is_local_path(named):
            raise InputError(f"LABKIT_HOME is {named!r}; allowed: {LOCAL_PATH}")
        return Path(os.path.expanduser(named)).absolute()
    return checkout() or Path.home() / ".labkit"


def data_home() -> Path:
    """Return the default folder of prepared data sets, ``<home>/data``."""
    return home() / "data"


def runs_home() -> Path:
    """Return the default folder of run directories, ``<home>/runs``."""
    return home() / "runs"


def state_home() -> Path:
    """Return the folder of what this account keeps for itself, ``~/.local/state/labkit``.

    ``XDG_STATE_HOME`` names another folder than ``~/.local/state``.
    """
    named = os.environ.get("XDG_STATE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".local" / "state") / "labkit"
