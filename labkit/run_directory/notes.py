"""What people write down about a run: tags, a text, notes on steps, and whether it is archived; and
``lineage.json``: where a forked run comes from, and what was forked from it.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from labkit.errors import InputError
from labkit.run_directory.directory import RunDirectory, write_json_atomic
from labkit.run_directory.files import Count, locked, read_json, read_object

MAX_TAG = 40  # characters
MAX_TAGS = 20
MAX_NOTE = 10_000  # characters
MAX_STEP_NOTE = 100  # characters: it stands on the charts
MAX_STEP_NOTES = 50
LOCK_SECONDS = 10.0


@dataclass(frozen=True)
class Notes:
    """The contents of ``notes.json``, steps in order. Construction raises InputError beyond the limits."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False
    steps: tuple[tuple[int, str], ...] = ()  # each with the note on it

    def __post_init__(self) -> None:
        for tag in self.tags:
            _check_tag(tag)
        if len(self.tags) > MAX_TAGS:
            raise InputError(f"a run has at most {MAX_TAGS} tags, not {len(self.tags)}; remove some first")
        if len(self.note) > MAX_NOTE:
            raise InputError(
                f"a note has at most {MAX_NOTE:,} characters, not {len(self.note):,}; shorten it"
            )
        if not _is_text(self.note):
            raise InputError("a note is text without control characters other than tab and end of line")
        if len(self.steps) > MAX_STEP_NOTES:
            raise InputError(f"a run has notes on at most {MAX_STEP_NOTES} steps; remove some first")
        for step, text in self.steps:
            if step < 1 or not 0 < len(text) <= MAX_STEP_NOTE or not _is_text(text, but=""):
                raise InputError(
                    f"the note on step {step} is {text[:MAX_STEP_NOTE]!r}; allowed: a step from 1, and up to "
                    f"{MAX_STEP_NOTE} characters without control characters"
                )

    @property
    def text(self) -> str:
        """The note and those on steps, in one text."""
        return "\n".join(filter(None, (self.note, *(f"step {step:,}: {text}" for step, text in self.steps))))


def _check_tag(tag: str) -> None:
    if not tag or tag != tag.strip():
        raise InputError(f"a tag is {tag!r}; allowed: a text that neither begins nor ends with a space")
    if len(tag) > MAX_TAG:
        raise InputError(f"a tag is {tag[:MAX_TAG]!r}…, {len(tag)} characters; allowed: at most {MAX_TAG}")
    if not _is_text(tag, but=""):
        raise InputError(f"a tag is {tag!r}; allowed: text without control characters")


def _is_text(text: str, but: str = "\n\r\t") -> bool:
    """Return whether there is no control character (Cc), surrogate (Cs) or separator of lines in ``text``."""
    return not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        for character in text
        if character not in but
    )


def read_notes(run: RunDirectory) -> Notes:
    """Return what is written down about the run. What is missing or damaged counts as not written."""
    value = read_object(run.notes_path)
    tags, note = value.get("tags"), value.get("note")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        tags = []
    try:
        steps = tuple(sorted(msgspec.convert(value.get("steps"), dict[int, str], strict=False).items()))
    except ValueError:
        steps = ()
    return Notes(
        _if_allowed(tuple(tags), "tags"),
        _if_allowed(note, "note") if isinstance(note, str) else "",
        value.get("archived") is True,
        _if_allowed(steps, "steps"),
    )


def _if_allowed(value: Any, name: str) -> Any:
    """Return the value, or an empty one if it is beyond the limits."""
    try:
        Notes(**{name: value})
    except InputError:
        return type(value)()
    return value


def change_notes(
    run: RunDirectory,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
    archived: bool | None = None,
    at_step: tuple[int, str] | None = None,
    instead_of: str | None = None,
) -> Notes:
    """Change what is written down about the run, and return all of it. What isn't named stays as it is.

    ``at_step``: a step and the note on it; an empty one removes it. ``instead_of``: what ``note`` replaces.

    Raises InputError beyond the limits, for a run that isn't there, where another note is there than the one
    to replace, and where the file can't be written. Nothing is changed then.
    """
    if not run.exists():
        raise InputError(f"there is no run at {run.path}")
    try:
        with locked(run.config_path, LOCK_SECONDS):  # two who write at once lose nothing
            if instead_of is not None and (now := read_notes(run).note) != instead_of:
                raise InputError(
                    f"the note on {run.name} was changed meanwhile; save again to replace what is there now: "
                    f"{now or '–'}"
                )
            return _changed(run, add, set(remove), note, archived, at_step)
    except OSError as error:
        raise InputError(f"{run.notes_path} can't be written: {error.strerror}") from None


def _changed(
    run: RunDirectory,
    add: Iterable[str],
    gone: set[str],
    note: str | None,
    archived: bool | None,
    at_step: tuple[int, str] | None,
) -> Notes:
    before = read_notes(run)
    tags = tuple(
        tag for tag in dict.fromkeys((*before.tags, *(tag.strip() for tag in add))) if tag not in gone
    )
    changed: dict[str, Any] = {"note": note, "archived": archived}
    changed = {name: value for name, value in changed.items() if value is not None}
    if at_step is not None:
        steps = dict(before.steps) | {at_step[0]: at_step[1].strip()}
        changed["steps"] = tuple(sorted((step, text) for step, text in steps.items() if text))
    after = replace(before, tags=tags, **changed)
    if after != before:
        write_json_atomic(run.notes_path, asdict(after) | {"steps": dict(after.steps)})
    return after


MOST_GENERATIONS = 100  # of a family: a folder that was copied over another can name itself as its parent


@dataclass(frozen=True)
class Lineage:
    """The past that a run shares: of the run in the directory ``parent``, up to ``step``.

    ``changes``: the settings that differ from then on, by name: the parent's value and the fork's.
    """

    parent: str
    step: Count
    changes: dict[str, tuple[Any, Any]]

    def describe(self) -> str:
        """Return the changes in words, such as ``learning_rate 0.1 → 0.01``."""
        return ", ".join(f"{name} {old} → {new}" for name, (old, new) in self.changes.items())


@dataclass(frozen=True)
class Relative:
    """A run of a family. ``depth``: 0 for the one that all come from. ``lineage``: None for that one."""

    run: RunDirectory
    depth: int
    lineage: Lineage | None


def write_lineage(run: RunDirectory, lineage: Lineage) -> None:
    """Record where a run comes from."""
    write_json_atomic(run.lineage_path, asdict(lineage))


def read_lineage(run: RunDirectory) -> Lineage | None:
    """Return where a run comes from; None if it wasn't forked, or if that can't be read."""
    try:
        lineage: Lineage = read_json(run.lineage_path, Lineage)
    except (OSError, InputError):
        return None
    return lineage


def family_of(run: RunDirectory, runs: Iterable[RunDirectory]) -> list[Relative]:
    """Return the run that ``run`` comes from and all that were forked from it, each behind its parent.

    Args:
        run: one of the family.
        runs: those that are known; the parents of ``run`` are followed beyond them.
    """
    known = {one.path: (one, read_lineage(one)) for one in runs}
    root, lineage = run, read_lineage(run)
    known[root.path] = (root, lineage)
    for _ in range(MOST_GENERATIONS):
        if lineage is None or not RunDirectory(lineage.parent).exists():
            break
        root = RunDirectory(lineage.parent)
        lineage = read_lineage(root)
        known.setdefault(root.path, (root, lineage))
    children: dict[Path, list[tuple[RunDirectory, Lineage]]] = {}
    for one, origin in known.values():
        if origin is not None:
            children.setdefault(Path(origin.parent), []).append((one, origin))
    family: list[Relative] = []

    def add(one: RunDirectory, origin: Lineage | None, depth: int) -> None:
        if depth < MOST_GENERATIONS and all(one.path != relative.run.path for relative in family):
            family.append(Relative(one, depth, origin))
            for child, its in sorted(children.get(one.path, []), key=lambda pair: pair[0].name):
                add(child, its, depth + 1)

    add(root, lineage, 0)
    return family
