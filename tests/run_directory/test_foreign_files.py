"""A run of somebody else: links, pipes, devices and endless files in it are refused, and nobody waits."""

import io
import json
import os
import shutil
import signal
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import labkit
from app.markup import tail
from labkit.analysis.predictions import load_predictions
from labkit.commands import main as cli
from labkit.distributed.heartbeat import Heartbeat, write_heartbeat
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, RunLock
from labkit.run_directory.directory import replacing
from labkit.run_directory.files import LONGEST_LINE, AppendedLines, open_run_file
from labkit.run_directory.reader import MetricsReader
from labkit.training.console import Console
from tests.commands.in_process import ends_well, tree
from tests.commands.made_runs import make_run, whole_run

SECONDS = 20  # a pipe or an endless file would take for ever; a busy machine takes some seconds
FILES = (
    "config.json", "status.json", "environment.json", "notes.json", "lineage.json", "certificate.json",
    "metrics.jsonl", "evaluations.jsonl", "out.log", "console.log", "machine.jsonl", ".lock", ".stop",
    "layers.jsonl", "transfer.json", "predictions/test.json", "predictions/test.npz",
    "events/events.out.tfevents.1",
    "checkpoints/step-00000020/state.json", "cluster/worker-0.json", "cluster/launcher.log",
    "checkpoints", "checkpoints/step-00000020", "events", "predictions", "cluster", "numerics",
    "media", "media/index.jsonl",
)  # fmt: skip
COMMANDS = (
    ["runs"], ["show"], ["metrics"], ["report"], ["evaluate"], ["replay"], ["verify", "--files-only"],
    ["stop"], ["export"],
)  # fmt: skip


def _link(path: Path) -> None:
    path.symlink_to(next(folder / "mine" for folder in path.parents if (folder / "mine").exists()))


def _zeros(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**30)


KINDS = {
    "link": _link,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "zeros": _zeros,
}


# make test has every second file once, and each kind of thing some times.
CASES = [
    pytest.param(name, kind, marks=() if number % (2 * len(KINDS)) == 2 * at else pytest.mark.long)
    for number, name in enumerate(FILES)
    for at, kind in enumerate(KINDS)
]


def replace(path: Path, kind: str) -> None:
    """Put a thing of a kind into the place of a file or folder of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@pytest.fixture
def in_time():
    """End the test if it waits."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"no answer within {SECONDS} s"))
    yield lambda: signal.alarm(SECONDS)
    signal.alarm(0)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_command_answers_whatever_a_file_of_a_run_is(name, kind, tmp_path, in_time, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, other = whole_run(tmp_path, "bad"), whole_run(tmp_path, "good")
    (tmp_path / "mine").write_text("not for a run")
    replace(run.path / name, kind)
    for command in COMMANDS:
        in_time()
        given = ["--runs-dir", str(tmp_path)] if command == ["runs"] else [str(run.path)]
        code = ends_well(command[0], *given, *command[1:])
        assert code in ((0,) if command == ["runs"] else (0, 1, 2)), command
    in_time()
    rows = MetricsReader(other.metrics_path)
    assert rows.poll() and tail(run.path / name, 12_000) is not None
    assert (tmp_path / "mine").read_text() == "not for a run"


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    run = whole_run(tmp_path, "bad")
    for name in ("out.log", ".lock", "status.json", "worker-0.json"):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).symlink_to(tmp_path / "mine")
    heartbeat = Heartbeat("worker:0", "a:1", "h", 1, "i", 0, "waiting", 0, {}, "", None)
    for write in (
        lambda: Console(run.log_path),
        RunLock(run).acquire,
        lambda: open_run_file(run.status_path, "r+b"),
        lambda: write_heartbeat(run.path / "worker-0.json", heartbeat),
    ):
        with pytest.raises(OSError, match="a link, which labkit doesn't follow"):
            write()
    os.mkfifo(run.path / "worker-1.json")
    with pytest.raises(OSError):
        write_heartbeat(run.path / "worker-1.json", heartbeat)  # and doesn't wait
    assert (tmp_path / "mine").read_text() == "mine"
    with replacing(run.path / "notes.json") as first, replacing(run.path / "notes.json") as second:
        assert first.name != second.name, "a name that nobody can know before"
        first.touch(), second.touch()


def test_a_link_to_another_runs_lock_is_not_that_runs_process(tmp_path):
    busy, bad = whole_run(tmp_path, "busy"), whole_run(tmp_path, "bad")
    lock = RunLock(busy)
    assert lock.acquire() and RunLock(busy).holder() == os.getpid()
    (bad.path / ".lock").unlink(missing_ok=True)
    (bad.path / ".lock").symlink_to(busy.path / ".lock")
    assert RunLock(bad).holder() is None
    lock.release()


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder"])
@pytest.mark.parametrize("name", ["", "/variables.index", "/state.json"])
def test_a_checkpoint_is_a_folder_of_regular_files(name, kind, tmp_path, in_time):
    from labkit.training.checkpoints import CheckpointStore

    (tmp_path / "mine").mkdir()
    replace(Path(f"{tmp_path}/checkpoints/step-00000020{name}"), kind)
    in_time()
    with pytest.raises(InputError, match="can.t be restored"):
        CheckpointStore(tmp_path / "checkpoints").latest_state()


@pytest.mark.parametrize("folder", ["checkpoints", "events", "predictions", "cluster", "numerics"])
def test_nothing_is_written_into_a_folder_that_is_a_link(folder, tmp_path, shapes, capsys):
    mine = whole_run(tmp_path, "mine")
    (mine.path / folder).mkdir(exist_ok=True)
    (mine.path / folder / "step-00000004").mkdir()
    bad = make_run(tmp_path, "bad", state="interrupted", step=7, keep_checkpoints=1)
    replace(bad.path / folder, "folder")
    (bad.path / folder).rmdir()
    (bad.path / folder).symlink_to(mine.path / folder)
    before = tree(mine.path)
    reading = (["show"], ["export"], ["verify"], ["replay", "--step", "3"], ["metrics"], ["trace"])
    for words in (["resume"], ["evaluate"], *reading):
        assert cli.main([*words, str(bad.path)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and f"{folder} is a link" in line
    assert tree(mine.path) == before


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


@pytest.mark.parametrize(
    "place", ["cluster/machine", "cluster/spans", "events/debugger", "events/plugins/profile"]
)
def test_a_link_deep_in_a_run_is_refused_before_anything_is_written(place, tmp_path, shapes, capsys):
    mine = whole_run(tmp_path, "mine")
    before = tree(mine.path)
    bad = make_run(tmp_path, "bad", state="interrupted", step=7)
    empty = RunDirectory(tmp_path / "prepared")
    for run in (bad, empty):
        (run.path / place).parent.mkdir(parents=True, exist_ok=True)
        (run.path / place).symlink_to(mine.path)
    flags = ["--preset", "smoke", "--dataset", "shapes", "--job-dir", str(empty.path)]
    for words in (["resume", str(bad.path)], ["train", *flags], ["fork", str(bad.path), "--at", "3"]):
        assert cli.main(words) == 2
        assert "is a link, which labkit doesn't follow in a run" in capsys.readouterr().err
    with pytest.raises(InputError, match="is a link"):
        labkit.load_run(bad.path)
    assert tree(mine.path) == before


def test_tensorboard_shows_nothing_that_a_link_leads_to(tmp_path):
    from labkit.tensorboard.log_folder import LogFolder

    (tmp_path / "log").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "events.out.tfevents.1").write_text("mine")
    run, good = whole_run(tmp_path, "bad"), whole_run(tmp_path, "good")
    (run.events_path / "all").parent.mkdir(exist_ok=True)
    (run.events_path / "all").symlink_to(tmp_path / "private")
    os.mkfifo(good.events_path / "pipe.tfevents.2")
    folder = LogFolder(tmp_path / "log", lambda: [run, good])
    assert list((tmp_path / "log" / "bad").iterdir()) == []
    assert "pipe.tfevents.2" not in {path.name for path in (tmp_path / "log" / "good").iterdir()}
    assert any("isn't shown" in note and "is a link" in note for note in folder.notes())
