"""``labkit note``, ``labkit restore`` and ``labkit delete --trash``: what they change and refuse."""

import json
import shlex

import pytest

from labkit.commands import main as cli
from labkit.run_directory import RunLock
from labkit.run_directory.notes import Notes, read_notes
from tests.commands.made_runs import make_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_notes_are_written_and_shown(folder, capsys):
    run = make_run(folder, "mine")
    assert cli.main(["note", "mine", "--tag", "one", "--tag", "two", "--text", "a\nb", "--archive"]) == 0
    assert cli.main(["note", "mine", "--remove-tag", "one"]) == 0
    assert read_notes(run) == Notes(("two",), "a\nb", True)
    capsys.readouterr()
    assert cli.main(["show", "mine"]) == 0
    assert "two" in capsys.readouterr().out
    assert cli.main(["runs"]) == 0
    shown = capsys.readouterr()
    assert "mine" not in shown.out
    assert "1 archived run" in shown.err
    assert cli.main(["runs", "--archived", "--json", "--filter", "tag=two"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["tags"], found["note"], found["archived"]) == (["two"], "a\nb", True)
    assert cli.main(["note", "mine", "--unarchive"]) == 0
    assert not read_notes(run).archived


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tag", "x" * 41], "at most 40"),
        (["--tag", "a\nb"], "control characters"),
        (["--remove-tag", "x"], "has no tag 'x'; its tags: none"),
        (["--archive", "--unarchive"], "contradict each other"),
        (["--text", "x" * 10_001], "at most 10,000 characters"),
    ],
)
def test_mistakes(folder, capsys, flags, words):
    run = make_run(folder, "mine")
    assert cli.main(["note", "mine", *flags]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1
    assert read_notes(run) == Notes()


def test_a_run_goes_to_the_trash_and_comes_back(folder, capsys):
    run = make_run(folder, "mine")
    assert cli.main(["delete", "mine", "--trash"]) == 0
    assert not run.exists()
    assert cli.main(["runs"]) == 0
    assert "no runs in" in capsys.readouterr().out
    assert cli.main(["restore", "other"]) == 2
    assert "which holds mine" in capsys.readouterr().err
    assert cli.main(["restore", str(run.path)]) == 0
    assert run.exists()


def test_a_running_one_stays(folder, capsys):
    run = make_run(folder, "mine")
    lock = RunLock(run)
    assert lock.acquire()
    assert cli.main(["delete", "mine", "--trash"]) == 2
    assert "mine is running" in capsys.readouterr().err
    lock.release()
    assert run.exists()


def test_a_deleted_run_takes_its_notes_with_it(folder):
    run = make_run(folder, "mine")
    assert cli.main(["note", "mine", "--tag", "x"]) == 0
    assert cli.main(["delete", "mine", "--yes"]) == 0
    assert not run.path.exists()


def test_the_documented_commands(folder):
    make_run(folder, "first")
    for text in (
        'note first --tag paper --text "batch size as in the paper"',
        "note first --remove-tag paper --archive",
        "note first --unarchive",
        "runs --archived --filter tag=paper",
        "delete first --trash",
        "restore first",
    ):
        assert cli.main(shlex.split(text)) == 0
