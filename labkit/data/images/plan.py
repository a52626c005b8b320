"""Decide everything about a data set of pictures before a shard is written."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL

from labkit.data.images.check import Fact, check_pictures, source_sha256
from labkit.data.images.damage import check_damage
from labkit.data.images.decode import DEEPEST, white_of
from labkit.data.images.journal import Journal
from labkit.data.images.layouts import Listing
from labkit.data.images.names import shown
from labkit.data.images.remarks import class_counts
from labkit.data.images.splits import LARGEST_DEFAULT, Parts, choose_size, choose_splits
from labkit.data.images.write import ShardTask, shard_tasks
from labkit.data.manifest import FORMAT_VERSION
from labkit.data.request import Request
from labkit.plurals import counted, listed

__all__ = ["KIND", "Plan", "Settings", "make_plan"]

KIND = "images"  # of a manifest's source
_NAMED = 10  # classes in the first line
_LEAST_RANGE = 1 / 16  # of the values: 16 shades of 256 are left


@dataclass(frozen=True)
class Settings:
    """What is asked for, with what was asked for earlier where nothing is now.

    ``accepted``: paths of damaged files that were left out earlier.
    """

    image_size: int | None
    resize: str
    validation_size: int | None
    classes: tuple[str, ...] | None
    train_examples: int | None
    skip_damaged: bool
    accepted: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a shard is written."""

    listing: Listing
    facts: list[Fact]
    source: dict[str, Any]
    parts: Parts
    tasks: list[ShardTask]
    size: int
    lines: tuple[str, ...]

    @property
    def key(self) -> str:
        """What shards have to be written for, to be used by a later call."""
        content = [
            [task.path.name, task.paths, task.sha256, task.labels.tolist(), task.first_index]
            for task in self.tasks
        ]
        settings = [
            FORMAT_VERSION,
            PIL.__version__,
            self.size,
            self.source["resize"],
            self.source.get("white"),
        ]
        return hashlib.sha256(json.dumps([settings, content]).encode()).hexdigest()


def make_plan(request: Request, settings: Settings, listing: Listing, journal: Journal | None) -> Plan:
    """Check all pictures and decide what is written. Raises InputError; writes nothing but the journal."""
    names = listed([shown(name) for name in listing.classes], _NAMED)
    request.announce(f"{counted(len(listing.paths), 'picture')} in {len(listing.classes):,} classes: {names}")
    facts = check_pictures(listing, settings.image_size or LARGEST_DEFAULT, journal, request.announce)
    skipped = check_damage(
        listing, facts, request.announce, skip=settings.skip_damaged, accepted=settings.accepted
    )
    usable = np.array([not fact.problem for fact in facts])
    good = [fact for fact in facts if not fact.problem]
    size, lines = settings.image_size, [*listing.notes]
    if size is None:
        size, line = choose_size(good)
        lines.append(line)
    white = white_of(max((fact.high for fact in good if fact.grey), default=DEEPEST))
    lines += _reading_lines(good, size, settings.resize, white)
    parts = choose_splits(
        listing,
        usable,
        validation_size=settings.validation_size,
        train_examples=settings.train_examples,
        seed=request.seed,
    )
    tasks = shard_tasks(
        listing,
        facts,
        parts.rows,
        request.directory,
        size=size,
        resize=settings.resize,
        white=white,
        examples_per_shard=request.examples_per_shard,
    )
    source = _source(listing, facts, settings, parts, skipped)
    if any(fact.grey for fact in good):
        source["white"] = white
    return Plan(listing, facts, source, parts, tasks, size, (*lines, *parts.lines))


def _source(
    listing: Listing, facts: list[Fact], settings: Settings, parts: Parts, skipped: dict[str, str]
) -> dict[str, Any]:
    counts = {split: class_counts(listing, rows).tolist() for split, rows in parts.rows.items()}
    return {
        "kind": KIND,
        "location": str(listing.location),
        "sha256": source_sha256(listing, facts),
        "matches_published": None,
        "layout": listing.layout,
        "resize": settings.resize,
        "counts": {
            name: {split: values[label] for split, values in counts.items()}
            for label, name in enumerate(listing.classes)
        },
        "skipped": skipped,
        "asked": {"image_size": settings.image_size, "validation_size": settings.validation_size},
        "pillow": PIL.__version__,
    }


def _reading_lines(facts: Sequence[Fact], size: int, resize: str, white: int) -> list[str]:
    """Return lines that say what is done to the pictures."""
    lines = []
    others = [fact for fact in facts if (fact.width, fact.height) != (size, size)]
    if others:
        how = "cropped to their centre" if resize == "crop" else "scaled whole, between black bars"
        not_square = sum(fact.width != fact.height for fact in others)
        lines.append(
            f"{len(others):,} pictures are resized to {size} × {size}"
            + (f"; {not_square:,} that are not square are {how} (--resize)" if not_square else "")
        )
    enlarged = sum(min(fact.width, fact.height) < size for fact in others)
    if enlarged:
        lines.append(f"{counted(enlarged, 'picture')} smaller than {size} pixels: enlarged")
    transparent = sum(fact.transparent for fact in facts)
    if transparent:
        lines.append(f"{counted(transparent, 'picture')} with transparency: laid over white")
    grey = sum(fact.grey for fact in facts)
    if white != DEEPEST:
        lines.append(
            f"{counted(grey, 'picture')} of 16-bit grey without values above {white:,}: read as "
            f"{white.bit_length()} bits, so that {white:,} is white"
        )
    dull = [
        fact for fact in facts if 0 <= fact.high < fact.low + _LEAST_RANGE * (white if fact.grey else DEEPEST)
    ]
    if dull:
        lines.append(
            f"warning: {counted(len(dull), 'picture')} with 16 bits that use less than a sixteenth of their "
            "range, and become nearly one shade; spread their values before you prepare them"
        )
    return lines
