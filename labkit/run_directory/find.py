"""The runs that are known, and the one that a user named.

Runs that labkit made outside of ``<home>/runs`` are remembered: ``<home>/runs/.elsewhere`` has the path
of each, one a line, the newest last.
"""

import difflib
import os
from contextlib import suppress
from pathlib import Path

from labkit import home
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.directory import check_folders, make_private, replacing
from labkit.run_directory.files import locked

COMPARISONS = ("comparison.json", "replicas.json")  # beside the runs of labkit compare and replicas
MOST_RUNS = 1000  # the newest are kept
LOCK_SECONDS = 2.0  # another process holds the lock for milliseconds


def run_to_read(name: str) -> RunDirectory:
    """Return the run that ``name`` refers to, see ``find_run``.

    Raises InputError also if its folders hold a link.
    """
    run = RunDirectory(find_run(name))
    check_folders(run)
    return run


def find_run(name: str) -> Path:
    """Return the run directory that ``name`` refers to: a path, a name under ``<home>/runs``, or the
    name of a remembered run.

    Raises InputError, which lists the nearest or else the newest runs, if there is no such run.
    """
    paths = (Path(name), home.runs_home() / name)
    for path in paths:
        if RunDirectory(path).exists():
            return path
    for path in paths:
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
        hint = f"the newest runs: {', '.join(known[:5])}"
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


# ---- runs outside of <home>/runs ----------------------------------------------------------------------


def remember(run: RunDirectory) -> None:
    """Write down where a run is, unless it is below ``<home>/runs`` or one of a comparison's.

    Runs that are gone are left out of the list. Nothing happens where the list can't be written: a training
    doesn't fail for it.
    """
    path = os.fsencode(run.path)
    around = list(run.path.parents)
    if home.runs_home() in around or b"\n" in path:
        return
    if any((folder / name).exists() for folder in around[:2] for name in COMPARISONS):
        return
    with suppress(OSError, InputError):
        make_private(home.runs_home())
        with locked(home.runs_home() / ".elsewhere.lock", LOCK_SECONDS):
            kept = [os.fsencode(other.path) for other in runs_elsewhere() if other.path != run.path]
            with replacing(_list_path()) as temporary:
                temporary.write_bytes(b"".join(line + b"\n" for line in [*kept, path][-MOST_RUNS:]))


def runs_elsewhere() -> list[RunDirectory]:
    """Return the remembered runs that are still there, each once, the newest last."""
    try:
        lines = _list_path().read_bytes().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(os.fsdecode(line) for line in lines if line.startswith(b"/") and b"\0" not in line)
    return [run for run in map(RunDirectory, paths) if run.exists()]


def known_runs() -> list[RunDirectory]:
    """Return the runs in ``<home>/runs`` and the remembered ones, the most recently active first."""
    own = list_runs(home.runs_home())
    there = {os.path.realpath(run.path) for run in own}
    more = [run for run in runs_elsewhere() if os.path.realpath(run.path) not in there]
    return sorted([*own, *more], key=RunDirectory.last_active, reverse=True)


def _list_path() -> Path:
    return home.runs_home() / ".elsewhere"
