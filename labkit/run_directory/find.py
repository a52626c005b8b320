"""Find the run that a user named."""

from pathlib import Path

from labkit import home
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, list_runs

__all__ = ["find_run"]


def find_run(name: str) -> Path:
    """Return the run directory that ``name`` refers to: a path, or a name under ``<home>/runs``.

    Raises InputError, which lists the newest runs, if there is no such run.
    """
    for path in (Path(name), home.runs_home() / name):
        if RunDirectory(path).exists():
            return path
    known = [run.name for run in list_runs(home.runs_home())][:5]
    hint = (
        f"the newest in {home.runs_home()}: {', '.join(known)}" if known else f"{home.runs_home()} has none"
    )
    raise InputError(f"no run at {name!r}; give a run directory or a name that labkit runs lists; {hint}")
