"""Find the run that a user named."""

import difflib
from pathlib import Path

from labkit import home
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.elsewhere import known_runs

__all__ = ["find_run", "lost_runs", "missing_config"]


def find_run(name: str) -> Path:
    """Return the run directory that ``name`` refers to: a path, a name under ``<home>/runs``, or the
    name of a remembered run.

    Raises InputError, which lists the nearest or else the newest runs, if there is no such run.
    """
    for path in (Path(name), home.runs_home() / name):
        if RunDirectory(path).exists():
            return path
    for path in (Path(name), home.runs_home() / name):
        if reason := missing_config(RunDirectory(path)):
            raise InputError(f"{path}: {reason}")
    if (Path(name) / "comparison.json").is_file():
        inside = ", ".join(sorted(run.name for run in list_runs(Path(name)))[:3]) or "it has none yet"
        raise InputError(f"{name!r} is a comparison, which holds several runs; give one of them: {inside}")
    every = known_runs()
    same = [run.path for run in every if run.name == name]
    if len(same) == 1:
        return same[0]
    if same:
        raise InputError(
            f"several runs are named {name!r}; give the path of one: {', '.join(map(str, same))}"
        )
    known = [run.name for run in every]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near = [*near, *(other for other in known if name and name in other and other not in near)][:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        hint = f"the newest in {home.runs_home()}: {', '.join(known[:5])}"
    else:
        hint = f"{home.runs_home()} has none"
    raise InputError(f"no run at {name!r}; give a run directory or a name that labkit runs lists; {hint}")


def missing_config(run: RunDirectory) -> str:
    """Return a sentence if a directory has what a training writes, but no configuration; else ""."""
    if run.exists():
        return ""
    try:
        found = [
            path.name for path in (run.metrics_path, run.status_path, run.environment_path) if path.is_file()
        ]
        found += ["a checkpoint"] if run.checkpoint_steps() else []
    except (OSError, ValueError):  # this user may not read the folder; the name has a null
        return ""
    if not found:
        return ""
    return f"config.json is missing in this run, which has {found[0]}; restore the file from a copy"


def lost_runs(folder: Path) -> list[RunDirectory]:
    """Return the directories under ``folder`` that ``missing_config`` has something to say of, by name."""
    try:
        children = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError):
        return []
    return [run for run in map(RunDirectory, children) if missing_config(run)]
