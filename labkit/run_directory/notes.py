"""What people write down about a run: tags, a text, and whether it is archived."""

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from labkit.errors import InputError
from labkit.run_directory.directory import RunDirectory, write_json_atomic
from labkit.run_directory.files import read_object

MAX_TAG = 40  # characters
MAX_TAGS = 20
MAX_NOTE = 10_000  # characters


@dataclass(frozen=True)
class Notes:
    """The contents of ``notes.json``. Construction raises InputError beyond the limits."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False

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
    return Notes(
        _if_allowed(tuple(tags), "tags"),
        _if_allowed(note, "note") if isinstance(note, str) else "",
        value.get("archived") is True,
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
) -> Notes:
    """Change what is written down about the run, and return all of it. What isn't named stays as it is.

    Raises InputError beyond the limits, for a run that isn't there, and where the file can't be written.
    Nothing is changed then.
    """
    if not run.exists():
        raise InputError(f"there is no run at {run.path}")
    before = read_notes(run)
    gone = set(remove)
    tags = tuple(
        tag for tag in dict.fromkeys((*before.tags, *(tag.strip() for tag in add))) if tag not in gone
    )
    changed: dict[str, Any] = {"note": note, "archived": archived}
    changed = {name: value for name, value in changed.items() if value is not None}
    after = replace(before, tags=tags, **changed)
    if after != before:
        try:
            write_json_atomic(run.notes_path, asdict(after))
        except OSError as error:
            raise InputError(f"{run.notes_path} can't be written: {error.strerror}") from None
    return after
