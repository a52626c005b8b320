"""A run of somebody else: links, pipes, devices and endless files in it are refused, and nobody waits."""

import io
import json
import os
import signal
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from app.logs import tail
from labkit.analysis.predictions import load_predictions
from labkit.errors import InputError
from labkit.run_directory import RunLock
from labkit.run_directory.files import LONGEST_LINE, AppendedLines, open_run_file
from labkit.run_directory.metrics import MetricsReader
from labkit.training.console import Console
from tests.commands.in_process import ends_well
from tests.commands.made_runs import whole_run

SECONDS = 5
FILES = (
    "config.json", "status.json", "environment.json", "notes.json", "lineage.json", "certificate.json",
    "metrics.jsonl", "evaluations.jsonl", "out.log", "console.log", "machine.jsonl", ".lock", ".stop",
)  # fmt: skip


def _link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "mine")


def _zeros(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**28)


KINDS = {
    "link": _link,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "zeros": _zeros,
}


@pytest.fixture
def in_time():
    """End the test if it waits."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"no answer within {SECONDS} s"))
    yield lambda: signal.alarm(SECONDS)
    signal.alarm(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_every_command_answers_whatever_a_file_of_a_run_is(name, kind, tmp_path, in_time):
    run, other = whole_run(tmp_path, "bad"), whole_run(tmp_path, "good")
    (tmp_path / "mine").write_text("not for a run")
    (run.path / name).unlink(missing_ok=True)
    KINDS[kind](run.path / name)
    for command in (
        ["runs"],
        ["show", str(run.path)],
        ["metrics", str(run.path), "--output", str(tmp_path / "m.csv")],
    ):
        in_time()
        folder = ["--runs-dir", str(tmp_path)] if command == ["runs"] else []
        assert ends_well(*command, *folder) in ((0,) if command == ["runs"] else (0, 2))
    in_time()
    rows = MetricsReader(other.metrics_path)
    assert rows.poll() and tail(run.path / name) is not None
    assert (tmp_path / "mine").read_text() == "not for a run"


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    run = whole_run(tmp_path, "bad")
    for name in ("out.log", ".lock", "status.json"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(tmp_path / "mine")
    for write in (
        lambda: Console(run.log_path),
        RunLock(run).acquire,
        lambda: open_run_file(run.status_path, "r+b"),
    ):
        with pytest.raises(OSError, match="a link, which labkit doesn't follow"):
            write()
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_link_to_another_runs_lock_is_not_that_runs_process(tmp_path):
    busy, bad = whole_run(tmp_path, "busy"), whole_run(tmp_path, "bad")
    lock = RunLock(busy)
    assert lock.acquire() and RunLock(busy).holder() == os.getpid()
    (bad.path / ".lock").unlink(missing_ok=True)
    (bad.path / ".lock").symlink_to(busy.path / ".lock")
    assert RunLock(bad).holder() is None
    lock.release()


def test_predictions_that_declare_more_than_they_hold_are_refused(tmp_path):
    run = whole_run(tmp_path, "bad")
    run.predictions_path.mkdir(exist_ok=True)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (2**37,)})
    with zipfile.ZipFile(run.predictions_path / "test.npz", "w") as archive:
        archive.writestr("labels.npy", header.getvalue())
    with pytest.raises(InputError, match="is damaged: .* declares .* values and has fewer"):
        load_predictions(run)


def test_a_line_without_an_end_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = json.dumps({"split": "train", "step": 1}).encode()
    path.write_bytes(b"x" * (3 * LONGEST_LINE) + b"\n" + row + b"\n")
    reader, read, began = AppendedLines(path), b"", time.monotonic()
    while not reader.caught_up:
        read += reader.read(2**16)
    assert read == path.read_bytes() and time.monotonic() - began < SECONDS
