"""What a table of runs needs from ``metrics.jsonl``, without parsing the whole file. Standard library only.

Nearly all rows are those of training steps. They are passed over by a search in the bytes; evaluations and
resume points are parsed. The line chart of the loss is made of rows at evenly spread places of the file.
"""

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.files import open_run_file
from labkit.run_directory.metrics import ResumePoint, chosen_step, clock_was_set, parse_lines

__all__ = ["SPARK_POINTS", "MetricsDigest", "number", "own_test", "own_test_step", "own_test_step_of"]

SPARK_POINTS = 40  # values of the small line chart
TIME_PIECES = 400  # of a session, at whose ends its time is read; where it jumps, all rows of a piece are

CHUNK_BYTES = 1 << 22  # searched at a time
TAIL_BYTES = 1 << 16  # of the end of a file or session, where its last row is looked for
SAMPLE_BYTES = (2048, TAIL_BYTES)  # read at one place for one row; more only where a row is longer

# The beginning of a line that isn't a row of a training step as labkit writes it.
_OTHER_LINE = re.compile(rb'\n(?!\{"split": "train"|\Z)')
# Step and loss of a row of a training step as labkit writes it: five times as quick as parsing the row.
_STEP_AND_LOSS = re.compile(
    rb'\{"split": "train", "step": (\d{1,18}), [^{}\[\]]*?'
    rb'"loss": (-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|NaN|-?Infinity)[,}]'
)
_TIME = re.compile(rb'"wall_time": (\d{1,18}(?:\.\d+)?)[,}]')
_WANTED = (b'"validation"', b'"test"', b'"resumed_at_step"')

Row = Mapping[str, Any]
Read = Callable[[int, int], bytes]  # (number of bytes, offset)


def number(value: Any) -> float | None:
    """Return ``value`` if it is a finite number, otherwise None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1e300 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


@dataclass
class MetricsDigest:
    """Follows a file of metrics; each ``poll`` searches only the bytes that were appended.

    Once the end of the file was reached (``complete``), the other fields tell; what isn't known is None:

    ``evaluations``: the rows of ``validation`` and ``test`` that count, in the order written.
    ``training_loss``: of the last training step that counts; NaN and infinity are kept.
    ``spark``: up to ``SPARK_POINTS`` finite losses, spread evenly over the bytes of the file.
    ``duration``: seconds of training, without the pauses between an interruption and the resumption. Where
    the clock was set, a row counts as long as it says itself.
    ``damaged_lines``: lines that aren't rows, as far as the search in the bytes shows: damage within a row
    that leaves its ends and its alphabet alone isn't seen.
    """

    path: Path
    evaluations: list[Row] = field(default_factory=list)
    resume_points: list[ResumePoint] = field(default_factory=list)
    training_loss: float | None = None
    last_step: int | None = None
    spark: tuple[float, ...] = ()
    duration: float | None = None
    damaged_lines: int = 0
    complete: bool = False
    _seen: tuple[int, int, int] | None = None  # time of change, size and inode at the last complete poll
    _offset: int = 0
    _inode: int | None = None
    _tail: bytes = b""  # the last bytes searched, to tell whether the file was replaced
    _sessions: list[tuple[int, ResumePoint]] = field(default_factory=list)  # byte offset of each resumption

    def poll(self, deadline: float = math.inf) -> bool:
        """Search what was appended since the last call. A missing or unreadable file has no rows.

        Returns False if the file is the same as at the last call.

        Args:
            deadline: time of ``time.monotonic()`` after which no further chunk is begun.
        """
        try:
            attributes = os.stat(self.path)
            seen = (attributes.st_mtime_ns, attributes.st_size, attributes.st_ino)
            if self.complete and seen == self._seen:
                return False
            with open_run_file(self.path, buffering=0) as file:
                self._restart_if_replaced(file.fileno(), attributes)
                read = self._search(file.fileno(), attributes.st_size, deadline)
                self.complete = read is not None
                if read is not None:
                    self._seen = seen
                    self._sample(read)
        except OSError:
            known = self._seen is not None or not self.complete
            self._restart()
            self.complete = True
            return known
        return True

    def _restart(self) -> None:
        self.__dict__.update(MetricsDigest(self.path).__dict__)

    def _restart_if_replaced(self, file: int, attributes: os.stat_result) -> None:
        before = os.pread(file, len(self._tail), self._offset - len(self._tail))
        if self._inode not in (None, attributes.st_ino) or before != self._tail:
            self._restart()
        self._inode = attributes.st_ino

    def _search(self, file: int, size: int, deadline: float) -> Read | None:
        """Read on from the offset to ``size``. Returns what reads the file once its end was reached."""
        begin = self._offset
        while True:
            data = os.pread(file, min(CHUNK_BYTES, max(0, size - self._offset)), self._offset)
            end = data.rfind(b"\n") + 1
            if not end and len(data) == CHUNK_BYTES:  # a line of megabytes isn't a row; its rest won't parse
                end = len(data)
                self.damaged_lines += 1
            elif end:
                self._take(data[:end])
            if end:
                self._tail = data[max(0, end - 256) : end]
                self._offset += end
            if len(data) < CHUNK_BYTES:
                whole = begin == 0 and self._offset == end  # it is in memory
                return partial(_slice, data) if whole else partial(_pread, file)
            if time.monotonic() >= deadline:
                return None

    def _take(self, data: bytes) -> None:
        starts = [found.end() for found in _OTHER_LINE.finditer(data)]
        if _looks_damaged(data, starts):
            values = parse_lines(data.splitlines())
            self.damaged_lines += sum(not isinstance(value, dict) for value in values)
        for start in starts if data.startswith(b'{"split": "train"') else [0, *starts]:
            line = data[start : data.find(b"\n", start) + 1 or len(data)]
            if not any(word in line for word in _WANTED):
                continue
            row = _parse(line)
            step = number(row.get("resumed_at_step"))
            if step is not None:
                when = number(row.get("wall_time"))
                point = ResumePoint(int(step), math.nan if when is None else when)
                self.resume_points.append(point)
                self._sessions.append((self._offset + start, point))
                self.evaluations = [old for old in self.evaluations if _step(old) <= step]
            elif row.get("split") in ("validation", "test"):
                self.evaluations.append(row)

    def _counts(self, offset: int, row: Row) -> bool:
        """Return whether the row at ``offset`` counts: no later resumption was from an earlier step."""
        return not any(offset < place and _step(row) > point.step for place, point in self._sessions)

    def _sample(self, read: Read) -> None:
        """Read single rows: for the small chart, the last loss, and the times of the sessions."""
        size = self._offset
        self.duration = self._duration(read)
        last = self._last_training_row(read, size)
        self.training_loss = last.get("loss") if last else None
        self.last_step = int(_step(last)) if last else None
        losses: dict[int, float | None] = {}
        offset = -1
        for place in range(SPARK_POINTS - 1):
            if size * place // (SPARK_POINTS - 1) <= offset:
                continue  # of a short file: the row that was found last
            offset, row = _row_at(read, size * place // (SPARK_POINTS - 1), size)
            if row and row.get("split") == "train" and self._counts(offset, row):
                losses[offset] = number(row.get("loss"))
        values = [losses[offset] for offset in sorted(losses)]
        if last and len(losses) >= SPARK_POINTS - 1:
            values.append(number(last.get("loss")))
        self.spark = tuple(value for value in values if value is not None)

    def _last_training_row(self, read: Read, size: int) -> Row | None:
        for offset, row in _rows_before(read, size):
            if row.get("split") == "train" and self._counts(offset, row):
                loss = row.get("loss")
                return row if isinstance(loss, int | float) and not isinstance(loss, bool) else None
        return None

    def _duration(self, read: Read) -> float | None:
        """Return the sum over the sessions of the time from the beginning to the last row."""
        total, known, start = 0.0, False, 0
        begin: float | None = None
        for place, point in [*self._sessions, (self._offset, ResumePoint(0, math.nan))]:
            seconds, last = _time_spent(read, start, place, begin)
            total, known = total + seconds, known or last != begin
            start, begin = place, number(point.wall_time)
        return total if known else None


def _time_spent(read: Read, start: int, end: int, before: float | None) -> tuple[float, float | None]:
    """Return the seconds from ``before`` to the last row between two places, and the time of that row.

    Without ``before``, the first row begins as long before its time as it took. Of many rows, only some are
    looked at; where the time jumps between two of them, so are those between.
    """
    pieces = min(TIME_PIECES, (end - start) // SAMPLE_BYTES[0])
    total, begin = 0.0, start
    for piece in range(1, pieces):
        place = start + (end - start) * piece // pieces
        found = _time_after(read, place, end) if place >= begin else None
        if found is None:
            continue
        stop, when = found
        if before is None or clock_was_set(when - before, 0.0):
            seconds, before = _time_of_rows(read(stop - begin, begin).split(b"\n"), before)
        else:
            seconds, before = when - before, when
        total, begin = total + seconds, stop
    seconds, before = _time_of_rows(read(end - begin, begin).split(b"\n"), before)
    return total + seconds, before


def _time_after(read: Read, place: int, end: int) -> tuple[int, float] | None:
    """Return the end of the row with the first ``wall_time`` after a place, and that time."""
    for length in SAMPLE_BYTES:
        data = read(min(length, end - place), place)
        found = _TIME.search(data)
        stop = data.find(b"\n", found.end()) + 1 if found else 0
        if found and stop:
            return place + stop, float(found[1])
    return None


def _time_of_rows(lines: list[bytes], before: float | None) -> tuple[float, float | None]:
    total = 0.0
    for row in map(_parse, lines):
        when = number(row.get("wall_time"))
        if when is None or "split" not in row:
            continue
        own = number(row.get("seconds_per_step")) or number(row.get("seconds")) or 0.0
        took = own if before is None else when - before
        total += own if clock_was_set(took, own) else took
        before = when
    return total, before


def _looks_damaged(data: bytes, other_lines: list[int]) -> bool:
    """Return whether not all of ``data`` is text in ASCII whose lines each begin and end as an object."""
    if not data.isascii() or data.count(b"\n") != data.count(b"}\n"):
        return True
    return any(data[start : start + 1] != b"{" for start in [0, *other_lines] if start < len(data))


def _slice(data: bytes, length: int, offset: int) -> bytes:
    return data[offset : offset + length]


def _pread(file: int, length: int, offset: int) -> bytes:
    return os.pread(file, length, offset)


def _row_at(read: Read, offset: int, size: int) -> tuple[int, Row | None]:
    """Return the first whole row at or after ``offset``, with its place; a row of training if one is near."""
    for length in SAMPLE_BYTES:
        # One byte more before it: a line that begins exactly here counts.
        start = max(0, offset - 1)
        data = read(min(length, size - start), start)
        begin = 0 if offset == 0 else data.find(b"\n") + 1
        if offset and not begin:
            continue
        while (end := data.find(b"\n", begin)) >= 0:
            quick = _STEP_AND_LOSS.match(data, begin, end) if offset else None
            if quick:
                return start + begin, {"split": "train", "step": int(quick[1]), "loss": float(quick[2])}
            row = _parse(data[begin:end])
            if "split" in row and (row["split"] == "train" or offset == 0):
                return start + begin, row
            begin = end + 1
    return size, None


def _rows_before(read: Read, end: int) -> Iterator[tuple[int, Row]]:
    """Yield the rows before the place ``end`` with theirs, the last one first, as far as one block goes."""
    start = max(0, end - TAIL_BYTES)
    data = read(end - start, start)
    stop = data.rfind(b"\n")
    while stop > 0:
        begin = data.rfind(b"\n", 0, stop) + 1
        if begin == 0 and start > 0:
            return  # the line began before the block
        row = _parse(data[begin:stop])
        if row:
            yield start + begin, row
        stop = begin - 1


def _step(row: Row | None) -> float:
    return number((row or {}).get("step")) or 0


def _parse(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


# ---- which test result a run stands for ---------------------------------------------------------------


def own_test_step(rows: Iterable[Row]) -> int | None:
    """Return the step of the checkpoint whose test result is the run's own; None: the newest one's.

    That is the one that the training reported. A training that reported none would have chosen the
    checkpoint of ``Selection``, or the newest if it validated nothing. Whoever chooses another one
    by its test result makes that result too good, so it never counts as the run's.

    Args:
        rows: of ``metrics.jsonl`` that count, in the order written.
    """
    steps: dict[str, list[Row]] = {"test": [], "validation": []}
    for row in rows:
        if row.get("split") in steps and number(row.get("step")) is not None:
            steps[row["split"]].append(row)
    if steps["test"]:
        return int(_step(_newest(steps["test"])))
    return chosen_step(steps["validation"])


def own_test(rows: Iterable[Row], beside: Iterable[Row]) -> Row | None:
    """Return the run's own test result; None if it has none.

    Args:
        rows: of ``metrics.jsonl`` that count, in the order written.
        beside: of ``evaluations.jsonl`` that count. One of them is taken only if the training reported none.
    """
    rows = list(rows)
    reported = [row for row in rows if row.get("split") == "test"]
    if reported:
        return _newest(reported)
    step = own_test_step(rows)
    tests = [row for row in beside if row.get("split") == "test"]
    if step is not None:
        return next((row for row in tests if row.get("step") == step), None)
    return _newest(tests) if tests else None


def _newest(rows: list[Row]) -> Row:
    """Return the row of the highest step; of several, the last one."""
    return max(reversed(rows), key=_step)


def own_test_step_of(run: RunDirectory) -> int | None:
    """Return ``own_test_step`` of a run, from its files."""
    digest = MetricsDigest(run.metrics_path)
    digest.poll()
    return own_test_step(digest.evaluations)
