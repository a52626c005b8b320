"""What an interrupted preparation has done, so that the next one goes on there.

Lines of JSON. Nothing in them is believed without a look at the files: a fact holds for a file whose content
has the checksum in it, and a shard is used if its plan is the same and its own checksum is right.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import PIL

from labkit.data.manifest import Shard
from labkit.data.shard_files import file_sha256

__all__ = ["JOURNAL_NAME", "Journal", "Written"]

JOURNAL_NAME = ".pictures.tmp"  # labkit.data.folder.clean removes it behind a complete preparation


@dataclass(frozen=True)
class Written:
    """A finished shard: its description, how often each value occurs in each channel, and hashes of pixels.

    ``counts``: 3 · 256 numbers. ``hashes``: of each image, 64 bits.
    """

    shard: Shard
    counts: list[int]
    hashes: list[int]


class Journal:
    """The journal of the preparation in a folder.

    Args:
        directory: the data set's folder.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / JOURNAL_NAME
        self.existed = self._path.exists()
        self._lines = list(_lines(self._path))

    def facts(self, size: int) -> dict[str, list[Any]]:
        """Return what was found of files by their paths, for pictures that get the side ``size``."""
        found: dict[str, list[Any]] = {}
        for line in self._lines:
            if line.get("facts_of") == [PIL.__version__, size] and isinstance(line.get("facts"), dict):
                found |= {path: fact for path, fact in line["facts"].items() if _is_fact(fact)}
        return found

    def add_facts(self, size: int, facts: Mapping[str, tuple[Any, ...]]) -> None:
        """Note what was found of files."""
        self._add({"facts_of": [PIL.__version__, size], "facts": facts})

    def shards(self, plan: str) -> dict[str, Written]:
        """Return the finished shards of a plan by name; their files are there and have the right checksum."""
        found = {}
        for line in self._lines:
            try:
                if line["plan"] != plan:
                    continue
                written = Written(Shard(**line["shard"]), line["counts"], line["hashes"])
                path = self._directory / written.shard.file
                if (
                    path.stat().st_size == written.shard.bytes
                    and len(written.hashes) == written.shard.count
                    and len(written.counts) == 768
                    and file_sha256(path) == written.shard.sha256
                ):
                    found[written.shard.file] = written
            except (KeyError, TypeError, ValueError, OSError):
                continue
        return found

    def add_shard(self, plan: str, written: Written) -> None:
        """Note a finished shard."""
        self._add(
            {"plan": plan, "shard": asdict(written.shard), "counts": written.counts, "hashes": written.hashes}
        )

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _add(self, line: dict[str, Any]) -> None:
        # A line begins with the end of the one before it, which may have been torn.
        with open(self._path, "a", encoding="ascii") as file:
            file.write("\n" + json.dumps(line))


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    found.append(line)
    except OSError:
        return []
    return found


def _is_fact(fact: Any) -> bool:
    kinds = (str, int, int, bool, str, int, int, bool)
    return (
        isinstance(fact, list)
        and len(fact) == len(kinds)
        and all(type(value) is kind for value, kind in zip(fact, kinds, strict=True))
    )
