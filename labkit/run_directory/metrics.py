"""``metrics.jsonl`` of a run directory: append rows, follow them by byte offset.

Beside it lies ``evaluations.jsonl``, for rows of processes that evaluate a run while another one trains it:
the training alone writes the first file, and any number of others the second, each row under a lock.

Standard library only. ``docs/run-directory.md`` describes the rows.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.errors import InputError

__all__ = [
    "MetricsReader",
    "MetricsWriter",
    "ResumePoint",
    "append_evaluation",
    "evaluations_path",
    "evaluations_that_count",
    "last_evaluations",
    "metrics_in_words",
    "selection_metric",
    "with_evaluations",
]

# Of an evaluation; which of them a row has depends on the loss (docs/run-directory.md).
FIGURES = ("loss", "accuracy", "top5_accuracy", "binary_accuracy", "f1_micro", "f1_macro")

SECONDS_FOR_THE_LOCK = 30.0  # a row takes milliseconds: whoever holds it longer was stopped


@dataclass(frozen=True)
class ResumePoint:
    """A place where a run went on: rows after ``step`` written before it are superseded."""

    step: int
    wall_time: float


class MetricsWriter:
    """Append rows to ``metrics.jsonl``; each row is one ``write`` of one line.

    On a file that exists, a torn last line (the writer was killed inside it) is cut off. Readers never
    go past the last newline, so none of them has seen it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            position = end = start
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def append(self, rows: list[Mapping[str, Any]]) -> None:
        """Write ``rows`` in order. NaN and Infinity are kept, as the tokens NaN and Infinity."""
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def mark_resume_point(self, step: int) -> None:
        """Say that the run goes on from ``step``: earlier rows after it no longer count."""
        self.append([{"resumed_at_step": step, "wall_time": time.time()}])

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class MetricsReader:
    """Follow ``metrics.jsonl`` by byte offset.

    ``rows`` holds what counts, in order of writing: after a resume point at step s, rows with a step greater
    than s that were written before it are gone. Lines that aren't JSON objects are counted in
    ``damaged_lines`` and skipped.

    With ``keep_rows=False`` nothing is kept in ``rows`` (300,000 of them are some 190 MB as dicts): the
    caller stores what ``poll`` returns in its own form, drops its rows beyond the step of each new
    entry of ``resume_points``, and drops everything when ``generation`` has grown. With ``splits``
    only rows of these splits are kept.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    resume_points: list[ResumePoint] = field(default_factory=list)
    damaged_lines: int = 0
    generation: int = 0  # grows whenever rows that a caller may have seen were dropped
    keep_rows: bool = True
    splits: Sequence[str] | None = None
    caught_up: bool = False  # whether the last poll reached the end of the file
    _offset: int = 0
    _inode: int | None = None
    _behind_offset: bytes = b""  # the last bytes read, to know the file again

    def poll(self, max_bytes: int | None = None) -> list[dict[str, Any]]:
        """Read what was appended since the last call; return the new rows that count.

        ``max_bytes`` bounds what one call takes in (a longer line is still read whole); ``caught_up``
        then says whether there was more. A file that was replaced, rewritten or cut shorter than the
        offset is read from its beginning. A missing file has no rows; other OSErrors are raised.
        """
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._inode is not None and not (inode == self._inode and self._knows(file)):
                    self._restart()
                self._inode = inode
                file.seek(self._offset)
                data = file.read(-1 if max_bytes is None else max_bytes)
                while max_bytes and b"\n" not in data and (more := file.read(max_bytes)):
                    data += more
                self.caught_up = not file.read(1)
        except FileNotFoundError:
            if self._inode is not None:
                self._restart()
                self._inode = None
            self.caught_up = True
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        self._behind_offset = (self._behind_offset + complete[-256:])[-256:]
        fresh: list[dict[str, Any]] = []
        for row in _parse_lines(complete.splitlines()):
            fresh = self._take(row, fresh)
        if self.keep_rows:
            self.rows.extend(row for row in fresh if self.splits is None or row.get("split") in self.splits)
        return fresh

    def _knows(self, file: Any) -> bool:
        # A run that is started over often gets the inode of the file that was removed, and may have
        # outgrown the offset by the next poll: only the bytes tell the two apart.
        file.seek(self._offset - len(self._behind_offset))
        return bool(file.read(len(self._behind_offset)) == self._behind_offset)

    def _take(self, row: Any, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not isinstance(row, dict):
            self.damaged_lines += 1
            return fresh
        if "resumed_at_step" not in row:
            fresh.append(row)
            return fresh
        step, wall_time = row["resumed_at_step"], row.get("wall_time")
        if not isinstance(step, int):
            self.damaged_lines += 1
            return fresh
        resume_point = ResumePoint(step, float(wall_time) if isinstance(wall_time, int | float) else math.nan)
        self.resume_points.append(resume_point)
        before = len(self.rows)
        self.rows = [old for old in self.rows if _step_of(old) <= resume_point.step]
        self.generation += len(self.rows) != before
        return [old for old in fresh if _step_of(old) <= resume_point.step]

    def _restart(self) -> None:
        self.rows = []
        self.resume_points = []
        self.damaged_lines = 0
        self.generation += 1
        self._offset = 0
        self._behind_offset = b""

    def split(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of one split: ``train``, ``validation`` or ``test``."""
        return [row for row in self.rows if row.get("split") == name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def last_evaluations(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last row that counts of ``test`` and of ``validation``, where there is one.

    Rows of training, nearly the whole file, are passed over unread. Raises OSError where there is no file.
    """
    wanted = (b'"test"', b'"validation"', b'"resumed_at_step"')
    with open(path, "rb") as file:
        lines = [line for line in file if line.endswith(b"\n") and any(word in line for word in wanted)]
    kept: list[dict[str, Any]] = []
    for row in _parse_lines(lines):
        if isinstance(row, dict) and isinstance(row.get("resumed_at_step"), int):
            kept = [old for old in kept if _step_of(old) <= row["resumed_at_step"]]
        elif isinstance(row, dict) and row.get("split") in ("test", "validation"):
            kept.append(row)
    last = {row["split"]: row for row in kept}
    return {split: last[split] for split in ("test", "validation") if split in last}


def metrics_in_words(row: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the figures of an evaluation's row for people: ``loss 0.6931  accuracy 0.5000  …``.

    ``names``: other names for some of them.
    """
    return "  ".join(f"{names.get(key, key)} {row[key]:.4f}" for key in FIGURES if key in row)


def selection_metric(row: Mapping[str, Any]) -> float:
    """Return what checkpoints are chosen by: accuracy, or micro-F1 where images have several labels.

    With many labels not one image may be right in all of them, in any checkpoint.
    """
    return row.get("f1_micro", row["accuracy"])


def evaluations_path(metrics_path: Path) -> Path:
    """Return the file of the evaluations that were made beside the training."""
    return metrics_path.with_name("evaluations.jsonl")


def evaluations_that_count(
    rows: Iterable[dict[str, Any]], resume_points: Iterable[ResumePoint]
) -> list[dict[str, Any]]:
    """Return the rows of ``evaluations.jsonl`` that count, the first for each split and step.

    The rule is that of ``metrics.jsonl``, by time in place of order: after a resume point at step s, rows
    with a greater step no longer count where their checkpoint was read (``wall_time``) before the resume
    point.
    """
    kept: dict[tuple[str, float], dict[str, Any]] = {}
    for row in rows:
        wall_time = row.get("wall_time")
        read = wall_time if isinstance(wall_time, int | float) else math.inf
        if not any(
            _step_of(row) > resume_point.step and read < resume_point.wall_time
            for resume_point in resume_points
        ):
            kept.setdefault(_split_and_step(row), row)
    return list(kept.values())


def with_evaluations(reader: MetricsReader) -> list[dict[str, Any]]:
    """Return the rows of ``reader`` and, after them, those beside its file for other splits and steps."""
    beside = MetricsReader(evaluations_path(reader.path))
    beside.poll()
    known = {_split_and_step(row) for row in reader.rows}
    more = evaluations_that_count(beside.rows, reader.resume_points)
    return [*reader.rows, *(row for row in more if _split_and_step(row) not in known)]


def append_evaluation(
    metrics_path: Path, row: Mapping[str, Any], resume_points: Iterable[ResumePoint]
) -> bool:
    """Append ``row`` to ``evaluations.jsonl`` unless its split and step stand there; return whether it was.

    Args:
        metrics_path: of the run.
        row: its ``wall_time`` is when the checkpoint was read.
        resume_points: of the run's metrics: rows that they superseded may be written anew.

    Raises InputError where another process holds the file.
    """
    path = evaluations_path(metrics_path)
    with open(path, "ab") as locked:
        _lock(locked, path)
        reader = MetricsReader(path)
        reader.poll()
        if _split_and_step(row) in map(_split_and_step, evaluations_that_count(reader.rows, resume_points)):
            return False
        writer = MetricsWriter(path)
        writer.append([row])
        writer.close()
    return True


def _lock(file: Any, path: Path) -> None:
    import fcntl

    give_up = time.monotonic() + SECONDS_FOR_THE_LOCK
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise InputError(f"{path} is held by another process; end that one and try again") from None
            time.sleep(0.05)


def _split_and_step(row: Mapping[str, Any]) -> tuple[str, float]:
    return str(row.get("split")), _step_of(row)


def _step_of(row: Mapping[str, Any]) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else 0


def _parse_lines(lines: list[bytes], block: int = 4096) -> Iterator[Any]:
    """Yield the value of each line that isn't blank, None where it is no JSON.

    A block of lines is parsed as one JSON array: quicker than one call per line (0.57 times, the median
    of five tries on a busy machine), and the rows share their keys' strings, which halves their memory.
    A block that doesn't parse so is read line by line.
    """
    lines = [line for line in lines if line.strip()]
    for start in range(0, len(lines), block):
        part = lines[start : start + block]
        if all(line.startswith(b"{") and line.endswith(b"}") for line in part):
            values = _parse(b"[" + b",".join(part) + b"]")
            if values is not None and len(values) == len(part):
                yield from values
                continue
        yield from map(_parse, part)


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
