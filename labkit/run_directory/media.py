"""What callbacks kept of single steps: images, histograms and texts.

``media/index.jsonl`` has a row for each: ``step``, ``wall_time``, ``name``, ``kind`` (``image``,
``histogram`` or ``text``), and ``file`` within ``media/``, ``edges`` and ``counts``, or ``text``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import InputError, reason_of
from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.files import open_run_file
from labkit.run_directory.metrics import is_superseded
from labkit.run_directory.rows import ResumePoint, RowReader, is_step, number

INDEX = "index.jsonl"
LARGEST_IMAGE = 2**25  # bytes of a PNG file that is shown
_PNG = b"\x89PNG\r\n\x1a\n"


_PLACE = ("step", "wall_time", "name", "kind")


@dataclass(frozen=True)
class Medium:
    """One thing that was kept. ``content``: of the index row, checked for its kind."""

    step: int
    wall_time: float
    name: str
    kind: str
    content: dict[str, Any]


class MediaReader(RowReader):
    """Follows ``media/index.jsonl``; ``rows`` are of ``Medium``."""

    def parse(self, row: dict[str, Any]) -> Medium | None:
        step, name, kind, wall_time = row.get("step"), row.get("name"), row.get("kind"), row.get("wall_time")
        good = is_step(step) and isinstance(name, str) and number(wall_time) is not None
        return Medium(**{key: row[key] for key in _PLACE}, content=row) if good and _fits(kind, row) else None


def media_that_count(
    media: Iterable[Medium], resume_points: Iterable[ResumePoint]
) -> dict[str, list[Medium]]:
    """Return by name, in order of step, what was kept last for each step.

    Args:
        media: in the order written.
        resume_points: of the run's ``metrics.jsonl``. Each makes what was kept of later steps invalid.
    """
    points = list(resume_points)
    found: dict[str, dict[int, Medium]] = {}
    for one in media:
        if not is_superseded(one.step, one.wall_time, points):
            found.setdefault(one.name, {})[one.step] = one
    return {name: [steps[step] for step in sorted(steps)] for name, steps in sorted(found.items())}


def _fits(kind: Any, row: dict[str, Any]) -> bool:
    if kind == "text":
        return isinstance(row.get("text"), str)
    if kind == "image":
        file = row.get("file")
        return isinstance(file, str) and Path(file).name == file and file.endswith(".png")
    edges, counts = (_numbers(row.get(key)) for key in ("edges", "counts"))
    return kind == "histogram" and len(counts) > 0 and len(edges) == len(counts) + 1


def _numbers(values: Any) -> list[float]:
    """Return a list of finite numbers as it is; an empty one for anything else."""
    good = isinstance(values, list) and all(number(value) is not None for value in values)
    return values if good else []


def read_image(run: RunDirectory, medium: Medium) -> bytes:
    """Return the PNG file of an image. Raises InputError if it is missing or is something else."""
    path = run.media_path / medium.content["file"]
    try:
        with open_run_file(path) as file:
            content = file.read(LARGEST_IMAGE + 1)
    except OSError as error:
        raise InputError(f"{path} can't be read: {reason_of(error)}") from None
    if not content.startswith(_PNG) or len(content) > LARGEST_IMAGE:
        raise InputError(f"{path} is no PNG image of at most {LARGEST_IMAGE >> 20} MiB")
    return content
