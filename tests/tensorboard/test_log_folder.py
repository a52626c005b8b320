"""The folder of links that gives TensorBoard the runs' names, and what it tells of their files."""

import os
import shutil
from pathlib import Path

import pytest

from labkit.run_directory import RunDirectory, Status
from labkit.tensorboard.log_folder import damage, log_folder, shown_names
from tests.tensorboard.conftest import event_file, record


def directories(*paths: str) -> list[RunDirectory]:
    return [RunDirectory(f"/home/me/{path}") for path in paths]


def test_a_run_is_shown_once_and_runs_of_one_name_are_told_apart_by_their_folders():
    assert list(shown_names(directories("a/first", "a/second", "a/first"))) == ["first", "second"]
    assert shown_names([]) == {}
    names = shown_names(directories("a/run", "b/run", "b/other"))
    assert list(names) == ["run in a", "run in b", "other"]
    assert names["run in b"].path == Path("/home/me/b/run")
    names = shown_names(directories("x/a/run", "y/a/run", "b/run"))
    assert list(names) == ["run in a in x", "run in a in y", "run in b"]


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path / "runs" / "a,b:c")
    record(run)
    return run


def test_what_is_new_is_linked_and_what_is_gone_is_removed(run, tmp_path):
    runs = [run]
    with log_folder(lambda: runs) as folder:
        assert [path.name for path in folder.path.iterdir()] == ["a,b:c"]
        assert (folder.path / "a,b:c" / event_file(run).name).read_bytes() == event_file(run).read_bytes()
        (run.events_path / "extras").mkdir()
        (run.events_path / "plugins" / "profile" / "now").mkdir(parents=True)
        later = RunDirectory(tmp_path / "runs" / "later")
        record(later)
        runs.append(later)
        folder.refresh()
        assert {path.name for path in folder.path.iterdir()} == {"a,b:c", "later"}
        assert (folder.path / "a,b:c" / "extras").is_symlink()
        # The profiler's page looks for folders of this name, and not behind links.
        assert not (folder.path / "a,b:c" / "plugins" / "profile").is_symlink()
        assert (folder.path / "a,b:c" / "plugins" / "profile" / "now").is_symlink()
        runs.remove(later)
        folder.refresh()
        assert [path.name for path in folder.path.iterdir()] == ["a,b:c"]
    assert not folder.path.exists()
    assert event_file(run).exists()


def test_the_newest_dump_is_where_debugger_v2_looks(run, tmp_path):
    other = RunDirectory(tmp_path / "runs" / "other")
    for number, one in enumerate((run, other)):
        (one.events_path / "debugger").mkdir(parents=True)
        dump = one.events_path / "debugger" / f"tfdbg_events.{number}.metadata"
        dump.write_text("")
        os.utime(dump, (number, number))
    with log_folder(lambda: [run, other]) as folder:
        assert folder.debugged == "other"
        assert [path.name for path in folder.path.glob("tfdbg*")] == ["tfdbg_events.1.metadata"]


def test_a_damaged_file_is_named_with_the_place_and_a_run_without_events_is_told(run):
    path = event_file(run)
    assert damage(path) is None
    content = path.read_bytes()
    for harmed in (content[:-5], content[:200] + b"\xff" * 200 + content[400:], b"hello" * 100):
        path.write_bytes(harmed)
        said = damage(path)
        assert f"{path} is damaged from byte " in said and f"of {len(harmed):,} on" in said
        with log_folder(lambda: [run]) as folder:
            assert folder.notes() == [said]
    run.write_status(Status("running", pid=0, host="elsewhere", heartbeat=2e9))
    with log_folder(lambda: [run]) as folder:
        assert folder.notes() == [], "a training that writes at this moment has an unfinished record"
        path.write_bytes(b"")
        assert damage(path) is None
    shutil.rmtree(run.events_path)
    with log_folder(lambda: [run]) as folder:
        assert folder.notes() == ["run a,b:c has no events yet; TensorBoard shows them once they are written"]
