"""Logs of other programs made into run directories: CSV files and TensorBoard's event files."""

import csv
import os
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.config.config import RECORDED_BY
from labkit.data.tfrecord import masked_checksums
from labkit.errors import InputError, reason_of, short
from labkit.home import expanded
from labkit.plurals import listed, without_secrets
from labkit.recording.recorder import SPLITS, opened, place, refuse_other_contents, split_named
from labkit.run_directory import RunDirectory, Status, write_json_atomic
from labkit.run_directory.find import remember
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import read_metrics, summary_of
from labkit.run_directory.rows import NOT_FINITE, is_step

EVENTS = "*tfevents*"
ROWS_AT_ONCE = 10_000
# epoch_loss, batch_loss and evaluation_loss_vs_iterations, as keras.callbacks.TensorBoard names them.
_KERAS = re.compile(r"(epoch|batch|evaluation)_(.+?)(?:_vs_iterations)?")
_PARTS = re.compile(r"[/_.\s-]")
_TAKEN = ("split", "step", NOT_FINITE, "resumed_at_step")  # what rows have beside metrics


@dataclass
class ImportedLog:
    """What a log holds.

    Attributes:
        rows: by split and step.
        left_out: what is no number, and damage, counted.
        texts: the first text in place of a number by column, and whether it is one with a decimal comma.
        in_percent: the splits whose accuracies were, and were divided by 100.
    """

    rows: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    texts: dict[tuple[str, bool], str] = field(default_factory=dict)
    in_percent: list[str] = field(default_factory=list)

    def add(self, split: str, step: int, name: str, value: float, wall_time: float | None) -> None:
        """Take a number; of several for one step, the last one counts, and others than it are left out."""
        if name in _TAKEN:
            self.left_out[f"value of {name}, a name that rows need"] += 1
            return
        row = self.rows.setdefault((split, step), {"split": split, "step": step})
        # Compared as texts, as NaN isn't equal to itself.
        before = row.get(name, value)
        self.left_out["earlier value of a step"] += before is not value and str(before) != str(value)
        row[name] = value
        if wall_time is not None:
            row["wall_time"] = wall_time

    def take_names_of_keras(self) -> None:
        """Name what TensorBoard's callback of Keras writes, such as ``batch_loss``, as rows name it.

        A run has one axis: values of epochs, such as ``epoch_learning_rate``, are left out if each split has
        those of steps. Otherwise, as by default, the training has epochs alone, and values of steps are.
        """
        found = {name: _KERAS.fullmatch(name) for row in self.rows.values() for name in row}
        kinds = {name: (one[2], one[1] == "epoch") for name, one in found.items() if one}
        named = [
            (row["split"], kinds[name][1]) for row in self.rows.values() for name in row if name in kinds
        ]
        by_step, by_epoch = (
            {split for split, of_epoch in named if of_epoch is kind} for kind in (False, True)
        )
        steps_stay = by_epoch <= by_step
        kept = by_step if steps_stay else by_epoch
        for key, row in list(self.rows.items()):
            for name in row.keys() & kinds.keys():
                (metric, of_epoch), value = kinds[name], row.pop(name)
                if of_epoch is steps_stay and row["split"] in kept:
                    what = "an epoch beside those of steps" if steps_stay else "a step beside those of epochs"
                    self.left_out[f"value of {what}"] += 1
                else:
                    row[metric] = value
            if not row.keys() - {"split", "step", "wall_time"}:
                del self.rows[key]

    def take_percents(self) -> None:
        """Make accuracies fractions, as rows have them, and leave out what can't be one."""
        rows = [row for row in self.rows.values() if "accuracy" in row]
        for row in rows:
            if row["accuracy"] < 0 or row["accuracy"] > 100:
                self.left_out["accuracy that is neither 0 to 1 nor 0 to 100"] += 1
                del row["accuracy"]
        rows = [row for row in rows if "accuracy" in row]
        highest: dict[str, float] = {}
        for row in rows:
            highest[row["split"]] = max(highest.get(row["split"], 0.0), row["accuracy"])
        # A fraction may be rounded to a little more than 1, and a program write one split in percent alone.
        limit = 1.0 if max(highest.values(), default=0.0) > 1.5 else 1.5
        self.in_percent = sorted(split for split, value in highest.items() if value > limit)
        for row in rows:
            row["accuracy"] /= 100 if row["split"] in self.in_percent else 1

    def told(self) -> str:
        """Return what was left out or changed, in words; "" for nothing."""
        left_out = sorted((+self.left_out).items())
        told = ", ".join(f"{count:,} × {what}" for what, count in left_out)
        changed = f"accuracies of {listed(self.in_percent)} are in percent: divided by 100"
        return "; ".join([f"left out: {told}"] * bool(told) + [changed] * bool(self.in_percent))


def import_csv(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    step: str = "step",
    overwrite: bool = False,
) -> tuple[RunDirectory, ImportedLog]:
    """Make a run of a CSV file with a column of steps, and one for each metric.

    Args:
        path: the file, UTF-8, with a line of names first. A column ``split`` tells the split of a row; else
            a name such as ``val_loss`` does, and other columns are of ``train``. ``wall_time`` is in seconds
            since 1970.
        name: of the run. Default: that of the file.
        step: the column of steps, such as ``epoch``.
        overwrite: discards a run of this name.

    Raises InputError, with nothing written, for a file that isn't such a table, and as ``start_run``.
    """
    source = _source(path, Path.is_file, "a CSV file")
    run = place(name or source.stem)
    refuse_other_contents(run, overwrite)
    log = ImportedLog()
    try:
        with open(source, newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            mark = max(",;\t", key=header.count)  # between cells
            columns = [column.strip() for column in next(csv.reader([header], delimiter=mark), [])]
            table = csv.DictReader(file, columns, delimiter=mark)
            names = [column for column in columns if column]
            if len({column.lower() for column in names}) < len(names):
                raise InputError(f"{source} names a column twice: {', '.join(names)}; rename one")
            if step not in names:
                raise InputError(
                    f"{source} has no column {step!r}; it has: {', '.join(names) or 'none'}; --step names it"
                )
            splits = {column: _split_of(column) for column in names if column not in (step, "split")}
            known = Counter(splits.values())
            for column, place_of in splits.items():
                if known[place_of] > 1:  # such as loss and train_loss, which may be two metrics
                    splits[column] = place_of[0], column.lower()
            for line, record in enumerate(table, 2):
                if None in record:
                    raise InputError(
                        f"{source}, line {line} has more cells than the {len(columns)} of line 1; "
                        "write numbers with a point, no comma, and texts in quotation marks"
                    )
                _take(log, record, step, splits, f"{source}, line {line}")
    except UnicodeDecodeError:
        raise InputError(f"{source} isn't UTF-8; save it as UTF-8, which spreadsheets offer") from None
    except (csv.Error, OSError) as error:
        raise InputError(f"{source} can't be read as a CSV file: {reason_of(error)}") from None
    if not log.rows:
        told = log.told()
        raise InputError(f"{source} has no row with a number" + (f"; {told}" if told else ""))
    _write(run, log, f"labkit import csv {source.name}", overwrite)
    return run, log


def _take(log: ImportedLog, record: dict[str, Any], step: str, splits: dict[str, Any], where: str) -> None:
    number = _number_of(record[step])
    if number is None or not number.is_integer() or not is_step(int(number)):
        raise InputError(f"{where}: {step} is {short(record[step])}; allowed: a whole number of at least 0")
    wall_time = _number_of(record.get("wall_time"))
    given = (record.get("split") or "").strip()
    try:
        given = given and split_named(given)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for column, (split, metric) in splits.items():
        if column == "wall_time" or not (record[column] or "").strip():
            continue
        value = _number_of(record[column])
        if value is None:
            text = record[column].strip()
            comma = "," in text and _number_of(re.sub("[.,]", "", text)) is not None
            first = log.texts.setdefault((column, comma), text)
            way = ": write a point, no comma" if comma else ""
            log.left_out[f"text in {column}, at first {short(first)}{way}"] += 1
        else:
            log.add(given or split, int(number), metric, value, wall_time)


def import_tensorboard(
    path: str | os.PathLike[str], name: str | None = None, *, overwrite: bool = False
) -> list[tuple[RunDirectory, ImportedLog]]:
    """Make a run of each folder of TensorBoard's event files; its scalars become rows.

    Folders named ``train``, ``validation`` and their like are splits of the run around them, as Keras writes
    them. A tag such as ``Loss/val`` tells its split itself; other tags have the folder's, or ``train``.

    Args:
        path: a folder, with others in it or not.
        name: of the run; where there are several, the beginning of their names. Default: that of the folder.
        overwrite: discards runs of these names.

    Raises InputError, with nothing written, for a folder without scalars, and as ``start_run``.
    """
    source = _source(path, Path.is_dir, "a folder of event files")
    logs: dict[str, ImportedLog] = {}
    folders: dict[str, Path] = {}
    inside = (file for file in source.rglob(EVENTS) if file.resolve().is_relative_to(source.resolve()))
    for file in sorted(found for found in inside if found.is_file()):
        folder = file.parent.relative_to(source)
        split = SPLITS.get(folder.name.lower())
        of_run = folder.parent if split else folder
        label = "-".join([name or source.name, *of_run.parts])
        if folders.setdefault(label, of_run) != of_run:
            raise InputError(f"{source} has two folders for one run, {label}: {folders[label]} and {of_run}")
        _read_events(file, split, logs.setdefault(label, ImportedLog()))
    for log in logs.values():
        log.take_names_of_keras()
    logs = {label: log for label, log in logs.items() if log.rows}
    if not logs:
        raise InputError(f"{source} has no event file of TensorBoard with a scalar")
    places = {label: place(label) for label in logs}
    for run in places.values():
        refuse_other_contents(run, overwrite)
    for label, log in logs.items():
        _write(places[label], log, f"labkit import tensorboard {source.name}", overwrite)
    return [(places[label], log) for label, log in logs.items()]


def _read_events(path: Path, split: str | None, log: ImportedLog) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    known: dict[str, tuple[str, str]] = {}
    for record in _records(path, log):
        try:
            event = Event.FromString(record)
        except Exception:  # protobuf's own, which differs between its versions
            log.left_out["damaged event"] += 1
            continue
        for value in event.summary.value:
            found = _scalar_of(value)
            if found is None:
                log.left_out["other value"] += 1
                continue
            if value.tag not in known:
                own, metric = _split_of(value.tag)
                known[value.tag] = (own if metric != value.tag.lower() else split or own), metric
            if is_step(event.step):
                log.add(known[value.tag][0], event.step, known[value.tag][1], found, event.wall_time)
            else:
                log.left_out["value of a step that is none"] += 1


def _records(path: Path, log: ImportedLog) -> Iterator[bytes]:
    """Yield the records of a file of events as far as they are whole; a half one may still be written."""
    content, position = path.read_bytes(), 0
    parts: list[tuple[bytes, int]] = []
    while position + 12 <= len(content):
        length = struct.unpack_from("<Q", content, position)[0]
        end = position + 12 + length
        if end + 4 > len(content):
            break
        parts.append((content[position + 12 : end], struct.unpack_from("<I", content, end)[0]))
        position = end + 4
    if position < len(content):
        kept = content[position + 8 : position + 12]
        half = struct.pack("<I", masked_checksums([content[position : position + 8]])[0])[: len(kept)] == kept
        log.left_out["half event" if half else "damaged event with all that follows"] += 1
    for start in range(0, len(parts), ROWS_AT_ONCE):
        some = parts[start : start + ROWS_AT_ONCE]
        for (record, told), found in zip(some, masked_checksums([part[0] for part in some]), strict=True):
            if found == told:
                yield record
            else:
                log.left_out["damaged event"] += 1


def _scalar_of(value: Any) -> float | None:
    """Return the number of a value of TensorBoard's summary; None for an image, a histogram and the like."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.tensor.tensor_shape.dim:
        return None
    if value.tensor.float_val:
        return float(value.tensor.float_val[0])
    from tensorboard.util.tensor_util import make_ndarray

    try:
        return float(make_ndarray(value.tensor))
    except (TypeError, ValueError):
        return None


def _split_of(name: str) -> tuple[str, str]:
    """Return the split that a name tells, else ``train``, and the metric without it, in small letters."""
    *kind, name = re.split("(?<=^epoch_)|(?<=^batch_)", name.lower(), maxsplit=1)  # as in epoch_val_loss
    words = _PARTS.split(name)
    for where in (0, -1) if len(words) > 1 else ():
        if split := SPLITS.get(words[where]):
            cut = len(words[where]) + 1
            return split, "".join([*kind, name[cut:] if where == 0 else name[:-cut]])
    return "train", "".join([*kind, name])


def _number_of(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _source(path: str | os.PathLike[str], is_there: Any, what: str) -> Path:
    source = expanded(path).absolute()
    if not is_there(source):
        raise InputError(f"{source} is not there, or not {what}")
    return source


def _write(run: RunDirectory, log: ImportedLog, by: str, overwrite: bool) -> None:
    """Write a run that has ended. Rows are in the order of their steps, evaluations after training."""
    lock = opened(run, overwrite)
    try:
        write_json_atomic(run.config_path, {RECORDED_BY: by, "settings": {}})
        write_json_atomic(run.environment_path, {"command": without_secrets(sys.argv)})
        log.take_percents()
        rows = sorted(log.rows.values(), key=lambda row: (row["step"], row["split"] != "train"))
        with closing(MetricsWriter(run.metrics_path)) as writer:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                writer.append(rows[start : start + ROWS_AT_ONCE])
        last = max(row["step"] for row in rows)
        status = Status(
            "finished",
            last,
            last,
            heartbeat=time.time(),
            message=log.told(),
            metrics=summary_of(read_metrics(run)).to_json(),
        )
        run.write_status(status)
        remember(run)
    finally:
        lock.release()
