"""Look at every picture before anything is written: whether it can be decoded, its size, its checksum, and
what people should know before they train on them.

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

import numpy as np

from labkit.data.images.decode import MAX_BYTES, DamagedError, examine
from labkit.data.images.layouts import Listing
from labkit.data.images.walk import shown
from labkit.data.pool import Display, do_tasks
from labkit.data.subset import lacking
from labkit.data.write import Journal
from labkit.errors import InputError
from labkit.plurals import counted, listed

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
    sha256 = hashlib.sha256(content).hexdigest()
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
        where = f", all listed in {_written(lines)}" if len(lines) > _SHOWN else ""
        raise InputError(
            f"{are} of {len(facts):,} in {shown(listing.location)} cannot be used, {such}{where}; "
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


_FEW = 10  # training pictures of a class
_RATIO = 10  # between the largest and the smallest class
_NAMED = 3  # classes or files in a line
_ENOUGH = 5  # pictures of a class, before its only size is no accident


def remarks(
    listing: Listing, facts: Sequence[Fact], rows: Mapping[str, np.ndarray], hashes: Mapping[str, np.ndarray]
) -> list[str]:
    """Return a line for each thing that makes a result doubtful.

    Args:
        listing: the pictures.
        facts: of each.
        rows: of each split.
        hashes: of the pixels of each image of each split, uint64, in the order of ``rows``.
    """
    return [
        *_several_labels(listing),
        *_few(listing, rows["train"]),
        *lacking(listing.labels, listing.classes, rows),
        *_repeated(listing, rows, hashes),
        *_telling_sizes(listing, facts, np.concatenate(list(rows.values()))),
    ]


def _several_labels(listing: Listing) -> list[str]:
    """Return a line for a set of several labels: one ``;`` in a table makes it one, perhaps by mistake."""
    if not listing.multi_label:
        return []
    labels = listing.labels.sum(axis=1)
    several, none = int((labels > 1).sum()), int((labels == 0).sum())
    without = f", and {counted(none, 'picture')} without a label" if none else ""
    return [
        f"{counted(several, 'picture')} with several labels{without}: "
        "each class is learnt for itself, with --loss sigmoid"
    ]


def _few(listing: Listing, train: np.ndarray) -> list[str]:
    counts = listing.counts(train)
    lines = []
    few = np.flatnonzero(counts < _FEW).tolist()
    if few:
        lines.append(
            f"warning: fewer than {_FEW} training pictures: "
            f"{listed([f'{shown(listing.classes[label])} ({counts[label]})' for label in few], _NAMED)}"
        )
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[high] >= _RATIO * counts[low]:
        lines.append(
            f"warning: the classes differ in size: {counts[high]:,} training pictures of "
            f"{shown(listing.classes[high])}, {counts[low]:,} of {shown(listing.classes[low])}; "
            "accuracy says little about the small ones"
        )
    return lines


def _repeated(
    listing: Listing, rows: Mapping[str, np.ndarray], hashes: Mapping[str, np.ndarray]
) -> list[str]:
    """Return lines about pictures with the same pixels: in two splits, or with other labels."""
    all_rows = np.concatenate(list(rows.values()))
    splits = np.repeat(np.arange(len(rows)), [len(part) for part in rows.values()])
    values = np.concatenate([hashes[name] for name in rows])
    order = np.lexsort((all_rows, values))
    ends = np.flatnonzero(np.diff(values[order])) + 1
    leaking: list[tuple[int, int]] = []  # places in all_rows
    conflicting: list[tuple[int, int]] = []
    for group in np.split(order, ends):
        if len(group) == 1:
            continue
        labels = listing.labels[all_rows[group]].reshape(len(group), -1)
        elsewhere = np.flatnonzero(splits[group] != splits[group[0]])
        if len(elsewhere):
            leaking.append((group[0], group[elsewhere[0]]))
        differing = np.flatnonzero((labels != labels[0]).any(axis=1))
        if len(differing):
            conflicting.append((group[0], group[differing[0]]))

    names = list(rows)

    def file(place: int) -> str:
        return f"{shown(listing.paths[all_rows[place]])} ({names[splits[place]]})"

    def files(pairs: list[tuple[int, int]]) -> str:
        pairs = sorted(pairs, key=lambda pair: all_rows[list(pair)].tolist())
        return listed([f"{file(one)} and {file(other)}" for one, other in pairs], _NAMED)

    lines = []
    if leaking:
        lines.append(
            f"warning: {counted(len(leaking), 'picture')} with the same pixels in two splits, so that scores "
            f"are too good: {files(leaking)}"
        )
    if conflicting:
        lines.append(
            f"warning: {counted(len(conflicting), 'picture')} with the same pixels and other labels: "
            f"{files(conflicting)}"
        )
    return lines


def _telling_sizes(listing: Listing, facts: Sequence[Fact], rows: np.ndarray) -> list[str]:
    """Return a line about classes that can be told by the size of the files alone."""
    if listing.multi_label or listing.are_numbers:
        return []
    sizes: list[set[tuple[int, int]]] = [set() for _ in listing.classes]
    for row in rows.tolist():
        sizes[listing.labels[row]].add((facts[row].width, facts[row].height))
    owners: dict[tuple[int, int], int] = {}
    for found in sizes:
        for size in found:
            owners[size] = owners.get(size, 0) + 1
    counts = listing.counts(rows)
    telling = [
        f"{shown(listing.classes[label])} ({size[0]} × {size[1]})"
        for label, found in enumerate(sizes)
        if len(found) == 1 and counts[label] >= _ENOUGH
        for size in found
        if owners[size] == 1
    ]
    if not telling:
        return []
    return [
        "warning: all pictures of a class have one size, and those of the others don't: "
        f"{listed(telling, _NAMED)}; the network may learn traces of the resizing"
    ]
