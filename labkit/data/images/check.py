"""Look at every picture before anything is written: whether it can be decoded, its size, its checksum.

Files that cannot be used are told, and either refuse all or are left out.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labkit.data.images.decode import MAX_BYTES, DamagedError, examine
from labkit.data.images.layouts import Listing
from labkit.data.images.names import shown
from labkit.data.pool import Display, do_tasks
from labkit.data.write import Journal
from labkit.errors import InputError

_SHOWN = 20  # files that cannot be used
_CHUNK = 128  # pictures of a task, at most
_CHUNKS = 32  # tasks, at least, so that all processes have work to the end


class Fact(NamedTuple):
    """What is known of a file: SHA-256 of its content and what it looks like; or why it is unusable.

    ``low``, ``high``: of a picture with 16 bits, the lowest and the highest value; ``high`` is -1 for others.
    """

    sha256: str
    width: int = 0
    height: int = 0
    transparent: bool = False
    problem: str = ""
    low: int = 0
    high: int = -1
    grey: bool = False


@dataclass(frozen=True)
class _Task:
    root: Path
    size: int  # 0: only read and hash
    paths: Sequence[str]
    known: Sequence[Fact | None]
    unusable: Mapping[str, str]


def check_pictures(
    listing: Listing,
    size: int,
    journal: Journal | None,
    announce: Callable[[str], None],
    what: str = "checking",
) -> list[Fact]:
    """Return the fact of each picture of a listing; those in the journal are decoded again only if changed.

    Args:
        listing: the pictures.
        size: the side that they will have; 0 reads and hashes the files without decoding them.
        journal: where facts are read from and added to; None for neither.
        announce: called with lines of progress.
        what: the word for the progress.
    """
    known: Mapping[str, Fact] = (
        {path: Fact(*fact) for path, fact in journal.facts(size).items()} if journal else {}
    )
    count = min(_CHUNK, -(-len(listing.paths) // _CHUNKS))
    chunks = [listing.paths[start : start + count] for start in range(0, len(listing.paths), count)]
    tasks = [
        _Task(
            root=listing.root,
            size=size,
            paths=paths,
            known=[known.get(path) for path in paths],
            unusable={path: listing.unusable[path] for path in paths if path in listing.unusable},
        )
        for paths in chunks
    ]
    found: list[list[Fact]] = [[] for _ in tasks]
    with Display(what, len(listing.paths), announce) as display:
        for number, facts in do_tasks(_check, tasks, len(listing.paths), display.advance):
            found[number] = facts
            if journal and any(old != new for old, new in zip(tasks[number].known, facts, strict=True)):
                journal.add_facts(size, dict(zip(chunks[number], facts, strict=True)))
    return [fact for facts in found for fact in facts]


def _check(task: _Task, report: Callable[[int], None]) -> list[Fact]:
    facts = [
        Fact("", problem=task.unusable[path])
        if path in task.unusable
        else _fact(os.path.join(task.root, path), task.size, known)
        for path, known in zip(task.paths, task.known, strict=True)
    ]
    report(len(facts))
    return facts


def _fact(path: str, size: int, known: Fact | None) -> Fact:
    try:
        content = read_picture(path)
    except DamagedError as error:
        return Fact("", problem=str(error))
    sha256 = content_sha256(content)
    if known is not None and known.sha256 == sha256:
        return known
    if not size:
        return Fact(sha256)
    try:
        look = examine(content, size)
    except DamagedError as error:
        return Fact(sha256, problem=str(error))
    low, high = look.deep or (0, -1)
    return Fact(sha256, look.width, look.height, look.transparent, low=low, high=high, grey=look.grey)


def read_picture(path: str) -> bytes:
    """Return a file's content; raise DamagedError where it can't be read or is too large."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
            raise DamagedError("not a file")
        if status.st_size > MAX_BYTES:
            raise DamagedError(f"{status.st_size / 2**20:,.0f} MiB; at most {MAX_BYTES >> 20} are allowed")
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError as error:
        raise DamagedError(f"cannot be read: {error.strerror}") from None


def content_sha256(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def source_sha256(listing: Listing, facts: Sequence[Fact]) -> str:
    """Return the SHA-256 over names and contents of all pictures, and the CSV file where there is one."""
    digest = hashlib.sha256(listing.table_sha256.encode())
    for path, fact in zip(listing.paths, facts, strict=True):
        digest.update(f"{json.dumps(path)} {fact.sha256}\n".encode())
    return digest.hexdigest()


def check_damage(
    listing: Listing,
    facts: Sequence[Fact],
    announce: Callable[[str], None],
    *,
    skip: bool,
    accepted: Collection[str],
) -> dict[str, str]:
    """Return what is wrong with each file that cannot be used, by its path.

    Args:
        listing: the pictures.
        facts: of each.
        announce: called with a line for each of the first twenty, unless the error names the only one.
        skip: whether such files are left out.
        accepted: paths of those that are left out anyway.

    Raises:
        InputError: there are such files and they are not to be left out, or nothing else is there.
    """
    damaged = {path: fact.problem for path, fact in zip(listing.paths, facts, strict=True) if fact.problem}
    if not damaged:
        return {}
    lines = [f"{shown(path)}: {shown(problem)}" for path, problem in damaged.items()]
    none_left = len(lines) == len(facts)
    refused = none_left or (not skip and not damaged.keys() <= set(accepted))
    are, such = f"{len(lines):,} pictures", f"such as {lines[0]}"
    if len(lines) == 1:
        are, such = "1 picture", lines[0]
    if not refused or len(lines) > 1:  # the error names a single one
        for line in lines[:_SHOWN]:
            announce(f"cannot be used: {line}")
    if len(lines) > _SHOWN:
        announce(f"and {len(lines) - _SHOWN:,} more")
    if none_left:
        raise InputError(f"none of the {len(facts):,} files in {shown(listing.location)} can be used, {such}")
    if refused:
        listed = f", all listed in {_written(lines)}" if len(lines) > _SHOWN else ""
        raise InputError(
            f"{are} of {len(facts):,} in {shown(listing.location)} cannot be used, {such}{listed}; "
            "repair or remove them, or leave them out with --skip-damaged"
        )
    announce(f"{are} left out, listed in the manifest")
    return damaged


def _written(lines: Sequence[str]) -> str:
    """Write lines to a file outside the data set, which does not exist yet, and return its path."""
    handle, path = tempfile.mkstemp(prefix="labkit-damaged-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path
