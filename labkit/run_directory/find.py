"""Find the run that a user named."""

import difflib
from pathlib import Path

from labkit import home
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, list_runs

__all__ = ["find_run"]


def find_run(name: str) -> Path:
    """Return the run directory that ``name`` refers to: a path, or a name under ``<home>/runs``.

    Raises InputError, which lists the nearest or else the newest runs, if there is no such run.
    """
    for path in (Path(name), home.runs_home() / name):
        if RunDirectory(path).exists():
            return path
    if (Path(name) / "comparison.json").is_file():
        inside = ", ".join(sorted(run.name for run in list_runs(Path(name)))[:3]) or "it has none yet"
        raise InputError(f"{name!r} is a comparison, which holds several runs; give one of them: {inside}")
    known = [run.name for run in list_runs(home.runs_home())]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near = [*near, *(other for other in known if name and name in other and other not in near)][:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        hint = f"the newest in {home.runs_home()}: {', '.join(known[:5])}"
    else:
        hint = f"{home.runs_home()} has none"
    raise InputError(f"no run at {name!r}; give a run directory or a name that labkit runs lists; {hint}")
