"""The runs that are known, the one that a user named, and those that fit words and conditions such as
``accuracy>0.8``.

Runs that labkit made outside of ``<home>/runs`` are remembered: ``<home>/runs/.elsewhere`` has the path
of each, one a line, the newest last.
"""

import dataclasses
import difflib
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit import home
from labkit.errors import InputError, unknown_name_error
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.directory import check_folders, make_private, replacing
from labkit.run_directory.files import locked
from labkit.run_directory.notes import read_lineage, read_notes, write_lineage
from labkit.run_directory.rows import is_number
from labkit.run_directory.stop import idle
from labkit.run_directory.summary import RunSummary

# Beside the runs of labkit compare, replicas and search.
COMPARISONS = ("comparison.json", "replicas.json", "search.json")
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
        if (run := RunDirectory(path)).exists():
            if ".." not in run.path.parts:
                return run.path
            # ".." is no name of a run; the last part may be a link.
            return run.path.resolve() if run.name == ".." else run.path.parent.resolve() / run.name
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
    return [run for run in remembered() if run.exists()]


def remembered() -> list[RunDirectory]:
    """Return where the remembered runs were, each once, the newest last: some may be gone since."""
    try:
        lines = _list_path().read_bytes().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(os.fsdecode(line) for line in lines if line.startswith(b"/") and b"\0" not in line)
    return list(map(RunDirectory, paths))


def known_runs() -> list[RunDirectory]:
    """Return the runs in ``<home>/runs`` and the remembered ones, the most recently active first."""
    own = list_runs(home.runs_home())
    there = {os.path.realpath(run.path) for run in own}
    more = [run for run in runs_elsewhere() if os.path.realpath(run.path) not in there]
    return sorted([*own, *more], key=RunDirectory.last_active, reverse=True)


def _list_path() -> Path:
    return home.runs_home() / ".elsewhere"


# What can be asked for beside the fields of the configuration.
FIELDS = (
    "name", "state", "step", "progress", "accuracy", "mean_absolute_error", "best_validation_accuracy",
    "test_accuracy", "training_loss", "examples_per_second", "duration", "age", "dataset", "model", "tag",
    "note",
)  # fmt: skip
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400}

_CONDITION = re.compile(r"([A-Za-z_]\w*)\s*(!=|>=|<=|=|>|<)\s*(.*)", re.DOTALL)
# What stands between two filters in one text; a value may hold spaces, as in "tag=for the paper".
NEXT_CONDITION = re.compile(r"\s+(?=[A-Za-z_]\w*\s*(?:!=|>=|<=|=|>|<))")
_NUMBER = re.compile(r"([-+.\deE_]+)\s*(%|s|min|h|d)?")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}

Condition = Callable[[RunSummary], bool]


def chosen_runs(
    summaries: Iterable[RunSummary], texts: Iterable[str], aliases: Mapping[str, str] | None = None
) -> list[RunSummary]:
    """Return the runs that all of ``texts`` fit. ``aliases``: names of settings, with the setting's own.

    A text that isn't ``FIELD=VALUE`` (or with ``!=``, ``>``, ``<``, ``>=``, ``<=``) fits a run that has it in
    its name, state, data set, model, tags or note. Case doesn't matter. A run without the value fits no
    condition but ``!=``.

    Raises InputError for an unknown field, with the nearest known one, and for a limit that isn't a number.
    """
    summaries = list(summaries)
    aliases = {"tags": "tag", **(aliases or {})}
    names = (name for summary in summaries for name in summary.values)
    known = [*dict.fromkeys([*FIELDS, *aliases.values(), *names])]
    conditions = [_condition(text, known, aliases) for text in texts]
    return [summary for summary in summaries if all(fits(summary) for fits in conditions)]


def _condition(text: str, known: list[str], aliases: Mapping[str, str]) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        return lambda summary: any(text.lower() in word.lower() for word in _words(summary))
    field, sign, value = found.groups()
    field = field if field in known else aliases.get(field, field)
    if field not in known:
        raise unknown_name_error("field of a condition", field, known)
    if sign in ("=", "!="):
        return lambda summary: _equals(summary, field, value) is (sign == "=")
    limit, order = _limit(text, value), _ORDER[sign]
    return lambda summary: is_number(it := _value(summary, field)) and order(it, limit)


def _limit(text: str, value: str) -> float:
    """Return the number in ``value``: ``0.8``, ``80%``, or a time such as ``2h``, in seconds."""
    found = _NUMBER.fullmatch(value.strip())
    try:
        number = float(found[1]) if found else float(value)
    except ValueError:
        raise InputError(
            f"the filter {text!r} compares with {value!r}; allowed: a number, such as accuracy>0.8 or age<2h"
        ) from None
    unit = found[2] if found else None
    return number / 100 if unit == "%" else number * TIMES.get(unit or "s", 1)


def _equals(summary: RunSummary, field: str, value: str) -> bool:
    if field == "tag":
        return value.lower() in (tag.lower() for tag in summary.notes.tags)
    own = _value(summary, field)
    with suppress(InputError):
        if is_number(own) and _limit(value, value) == own:
            return True
    return bool(str(own).lower() == value.lower())


def _value(summary: RunSummary, field: str) -> Any:
    if field == "note":
        return summary.notes.text
    return getattr(summary, field) if field in FIELDS and field != "tag" else summary.values.get(field)


def _words(summary: RunSummary) -> list[str]:
    known = (summary.name, summary.state, summary.dataset, summary.model, summary.notes.text)
    return [*(word for word in known if word), *summary.notes.tags]


# ---- rename --------------------------------------------------------------------------------------------


def rename_run(old: RunDirectory, new: str) -> tuple[RunDirectory, list[str]]:
    """Rename the directory of a run that isn't trained, and the parent in what was forked from it.

    Returns the run, and a line for each thing that was changed with it or keeps the old name.

    Raises InputError for a name that can't be, is taken, or is needed, and where the run is trained.
    """
    is_name = "/" not in new and not new.startswith((".", "-")) and new.isprintable() and new.strip()
    renamed = RunDirectory(old.path.with_name(new) if is_name else old.path)
    if renamed.path == old.path:
        raise InputError(
            f"the new name is {new!r}; allowed: another one than {old.name}, without /, . or - in front"
        )
    if os.path.lexists(renamed.path):
        raise InputError(f"{renamed.path} is there already; give another name")
    for folder in list(old.path.parents)[:2]:
        if any((folder / file).exists() for file in COMPARISONS):
            raise InputError(
                f"{old.name} belongs to {folder}, which finds its runs by their names; it keeps its name"
            )
    with idle(old, "stop"):
        known = {one.path: one for one in known_runs()}
        others = {one.path: one for one in list_runs(old.path.parent)} | known
        try:
            os.rename(old.path, renamed.path)
        except OSError as error:
            raise InputError(f"{old.path} can't be renamed to {new}: {error.strerror}") from None
    if old.path in known:
        remember(renamed)
    return renamed, [line for other in others.values() for line in _still_naming(other, old, renamed)]


def _still_naming(other: RunDirectory, run: RunDirectory, new: RunDirectory) -> Iterator[str]:
    """Let ``other`` name ``new`` as its parent in place of ``run``; yield what names ``run`` and stays."""
    if other.path == run.path:
        other = new
    lineage = read_lineage(other)
    if lineage is not None and Path(lineage.parent) == run.path:
        write_lineage(other, dataclasses.replace(lineage, parent=str(new.path)))
        yield f"{other.name}, a fork of it, names its new directory"
    try:
        start = str(other.read_config().get("transfer", {}).get("start_from"))
    except (InputError, AttributeError):
        start = ""
    if start in (run.name, str(run.path)):
        yield f"note: {other.name} records that it started from {start}, its name until now"
    if re.search(rf"(?<![\w-]){re.escape(run.name)}(?![\w-])", read_notes(other).note):
        command = f"labkit note {shlex.quote(other.name)} --text"
        yield f"note: the note on {other.name} names {run.name}; {command} changes it"
