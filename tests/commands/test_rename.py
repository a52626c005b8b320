"""``labkit rename``: the run, what was forked from it, and what still names it."""

import json

import pytest

from labkit.commands import main as cli
from labkit.run_directory import RunDirectory, RunLock
from labkit.run_directory.find import remember
from labkit.run_directory.lineage import Lineage, read_lineage, write_lineage
from labkit.run_directory.notes import change_notes, read_notes
from tests.commands.in_process import tree
from tests.commands.made_runs import make_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    folder = tmp_path / "runs"
    change_notes(make_run(folder, "old"), add=["paper"])
    fork = make_run(folder, "old-fork-5")
    write_lineage(fork, Lineage(str(folder / "old"), 5, {"learning_rate": (0.1, 0.01)}))
    return folder


def test_a_run_gets_another_name_and_its_forks_follow(runs, capsys):
    make_run(runs, "elder")
    write_lineage(RunDirectory(runs / "old"), Lineage(str(runs / "elder"), 3, {}))
    assert cli.main(["rename", "old", "new"]) == 0
    assert not (runs / "old").exists()
    assert read_notes(RunDirectory(runs / "new")).tags == ("paper",)
    lineage = read_lineage(RunDirectory(runs / "old-fork-5"))
    assert (lineage.parent, lineage.step, lineage.changes) == (
        str(runs / "new"), 5, {"learning_rate": (0.1, 0.01)},
    )  # fmt: skip
    assert read_lineage(RunDirectory(runs / "new")).parent == str(runs / "elder")
    assert "old-fork-5, a fork of it, names its new directory" in capsys.readouterr().out
    assert cli.main(["show", "new"]) == 0


def test_a_run_outside_of_labkits_home_is_still_listed(runs, tmp_path, capsys):
    other = make_run(tmp_path / "elsewhere", "old")
    remember(other)
    assert cli.main(["rename", str(other.path), "new"]) == 0
    capsys.readouterr()
    assert cli.main(["runs", "--json"]) == 0
    names = [run["name"] for run in json.loads(capsys.readouterr().out)]
    assert sorted(names) == ["new", "old", "old-fork-5"]


def test_what_keeps_the_old_name_is_said(runs, capsys):
    make_run(runs, "later", start_from="old")
    change_notes(make_run(runs, "noted"), note="better than old, see there")
    change_notes(make_run(runs, "unrelated"), note="the older one; old-fork-5 too")
    assert cli.main(["rename", "old", "new"]) == 0
    said = capsys.readouterr().out
    assert "later records that it started from old" in said
    assert "the note on noted names old" in said
    assert "unrelated" not in said


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", ".hidden", "-x", "a\nb", "old", "old-fork-5"])
def test_a_name_that_is_none_or_is_taken_is_refused(runs, name, capsys):
    before = tree(runs)
    assert cli.main(["rename", "old", *(["--"] if name == "-x" else []), name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert tree(runs).keys() == before.keys()


def test_a_run_that_is_being_written_keeps_its_name(runs, capsys):
    lock = RunLock(RunDirectory(runs / "old"))
    assert lock.acquire()
    try:
        assert cli.main(["rename", "old", "new"]) == 2
    finally:
        lock.release()
    assert "old is running; labkit stop old stops it" in capsys.readouterr().err
    assert (runs / "old").is_dir()


def test_a_training_of_a_comparison_keeps_its_name(runs, tmp_path, capsys):
    make_run(tmp_path / "comparison", "resnet8-seed0")
    (tmp_path / "comparison" / "comparison.json").write_text("{}")
    assert cli.main(["rename", str(tmp_path / "comparison" / "resnet8-seed0"), "new"]) == 2
    assert "belongs to" in capsys.readouterr().err
