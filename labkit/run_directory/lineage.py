"""Where a forked run comes from (``lineage.json``), and what was forked from it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.run_directory.directory import RunDirectory, write_json_atomic
from labkit.run_directory.files import Count, read_json

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
