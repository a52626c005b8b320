"""The copy of long metrics as columns: it is taken instead of the rows only where it is equal to them."""

import json
import os
import subprocess

import numpy as np
import pytest

from app.charts import column_copy
from app.charts.column_copy import copy_path
from app.charts.store import CurveStore
from labkit.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(column_copy, "MIN_BYTES", 1000)
    monkeypatch.setattr(
        column_copy, "keep", column_copy._write
    )  # not in a thread, so that a test needn't wait
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = RunDirectory(tmp_path / "run")
    found.path.mkdir()
    append(found, [row(step) for step in range(1, 200)])
    with open(found.metrics_path, "a") as file:
        file.write("damaged\n" + json.dumps({"resumed_at_step": 150, "wall_time": 5.0}) + "\n")
    append(found, [row(151) | {"added": 1.5}, {"split": "validation", "step": 151, "accuracy": 0.5}])
    return found


def row(step: int) -> dict:
    loss = float("nan") if step == 7 else 1 / step
    return {"split": "train", "step": step, "epoch": step / 10, "loss": loss, "wall_time": float(step)}


def append(run: RunDirectory, rows: list[dict]) -> None:
    with open(run.metrics_path, "a") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)


def content(store: CurveStore) -> object:
    metrics = store.poll()
    curves = {
        (split, name): [
            column.tolist() for column in (metrics.curve(split, name).step, metrics.curve(split, name).y)
        ]
        for split in metrics.tables
        for name in metrics.metrics([split])
    }
    return repr(curves), metrics.resume_points, metrics.damaged_lines


def by_rows(run: RunDirectory, monkeypatch) -> object:
    with monkeypatch.context() as patch:
        patch.setattr(column_copy, "recall", lambda rows: None)
        patch.setattr(column_copy, "keep", lambda rows, copy: None)
        return content(CurveStore(run.metrics_path))


def test_the_next_server_reads_the_copy_and_what_came_later(run, monkeypatch):
    CurveStore(run.metrics_path).poll()
    append(run, [row(152), row(153)])
    expected = by_rows(run, monkeypatch)
    read = []
    store = CurveStore(run.metrics_path)
    monkeypatch.setattr(store, "_take", lambda lines, take=store._take: read.append(lines) or take(lines))
    assert content(store) == expected
    assert len(read) == 1 and read[0].count(b"\n") == 2


def changed_row(run: RunDirectory) -> None:
    text = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(text.replace(b'"epoch": 0.3', b'"epoch": 0.4', 1))


def started_over(run: RunDirectory) -> None:
    run.metrics_path.write_text("")
    append(run, [row(step) for step in range(1, 400)])


def flipped_byte(run: RunDirectory) -> None:
    data = bytearray(copy_path(run.metrics_path).read_bytes())
    data[len(data) // 2] ^= 1
    copy_path(run.metrics_path).write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        changed_row,
        started_over,
        flipped_byte,
        lambda run: run.metrics_path.write_bytes(run.metrics_path.read_bytes()[:5000]),
        lambda run: copy_path(run.metrics_path).write_bytes(copy_path(run.metrics_path).read_bytes()[:3000]),
        lambda run: copy_path(run.metrics_path).write_bytes(b"no copy"),
        lambda run: np.savez(copy_path(run.metrics_path), head=np.zeros(3)),
        lambda run: (copy_path(run.metrics_path).unlink(), copy_path(run.metrics_path).mkdir()),
    ],
)
def test_a_copy_that_is_not_of_these_rows_is_not_used(run, harm, monkeypatch):
    CurveStore(run.metrics_path).poll()
    assert copy_path(run.metrics_path).is_file()
    harm(run)
    assert content(CurveStore(run.metrics_path)) == by_rows(run, monkeypatch)


def test_a_run_that_is_started_over_while_it_is_copied_leaves_no_copy(run, monkeypatch):
    def replaced_meanwhile(rows, copy):
        os.remove(rows)
        started_over(run)
        column_copy._write(rows, copy)

    monkeypatch.setattr(column_copy, "keep", replaced_meanwhile)
    CurveStore(run.metrics_path).poll()
    assert not copy_path(run.metrics_path).exists()


def test_what_a_killed_server_left_is_removed(run):
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = copy_path(run.metrics_path).parent
    folder.mkdir(parents=True)
    left, being_written = (folder / f"a.{process}.tmp" for process in (ended.pid, os.getppid()))
    left.touch()
    being_written.touch()
    CurveStore(run.metrics_path).poll()
    assert not left.exists()
    assert being_written.exists()


def test_short_metrics_are_not_copied(run, monkeypatch):
    monkeypatch.setattr(column_copy, "MIN_BYTES", 1 << 20)
    CurveStore(run.metrics_path).poll()
    assert not copy_path(run.metrics_path).exists()


def test_the_run_gets_no_file_and_the_cache_keeps_the_newest_copies(run, monkeypatch):
    monkeypatch.setattr(column_copy, "MOST_COPIES", 2)
    folder = copy_path(run.metrics_path).parent
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "old", "older")):
        (folder / f"{name}.npz").touch()
        os.utime(folder / f"{name}.npz", (1000 - age, 1000 - age))
    CurveStore(run.metrics_path).poll()
    assert [path.name for path in run.path.iterdir()] == ["metrics.jsonl"]
    assert {path.name for path in folder.iterdir()} == {"new.npz", copy_path(run.metrics_path).name}
