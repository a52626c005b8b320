"""``labkit note``, ``rename``, ``restore`` and ``delete --trash``: what they change and refuse."""

import json
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.run_directory import RunDirectory, RunLock
from labkit.run_directory.find import remember
from labkit.run_directory.notes import Lineage, Notes, change_notes, read_lineage, read_notes, write_lineage
from tests.commands.in_process import answer, refused, tree
from tests.commands.made_runs import make_run


def test_notes_are_written_and_shown(folder):
    run = make_run(folder, "mine")
    written = ["--tag", "one", "--tag", "two", "--text", "a\nb", "--archive"]
    assert answer("note", "mine", *written).code == 0
    assert answer("note", "mine", "--remove-tag", "one").code == 0
    assert read_notes(run) == Notes(("two",), "a\nb", True)
    assert "two" in answer("show", "mine").out
    _, out, err = answer("runs")
    assert "mine" not in out and "1 archived run" in err
    [found] = json.loads(answer("runs", "--archived", "--json", "--filter", "tag=two").out)
    assert (found["tags"], found["note"], found["archived"]) == (["two"], "a\nb", True)
    assert answer("note", "mine", "--unarchive").code == 0
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
def test_mistakes(folder, flags, words):
    run = make_run(folder, "mine")
    assert words in refused("note", "mine", *flags)
    assert read_notes(run) == Notes()


def test_a_note_on_a_step_is_written_shown_found_and_removed(folder):
    run = make_run(folder, "mine", step=37)
    assert "step 37: the rate was halved" in answer("note", "mine", 37, "the rate was halved").out
    assert answer("note", "mine", 5, "warm", "--tag", "paper").code == 0
    assert read_notes(run) == Notes(("paper",), steps=((5, "warm"), (37, "the rate was halved")))
    assert "mine" in answer("runs", "--filter", "halved").out
    assert "none of the" in answer("runs", "--filter", "doubled").out
    assert answer("note", "mine", 37, "").code == 0
    assert read_notes(run).steps == ((5, "warm"),)


def test_a_note_is_on_a_step_that_the_run_has_made_and_any_can_be_removed(folder):
    run = make_run(folder, "mine", state="interrupted", rows=[{"split": "train", "step": 21, "loss": 1.0}])
    change_notes(run, at_step=(900, "from an earlier version"))
    assert "STEP is 22; allowed: up to 21, the last step of mine so far" in refused("note", "mine", 22, "x")
    assert answer("note", "mine", 21, "newer than the status").code == 0
    assert answer("note", "mine", 900, "").code == 0
    assert read_notes(run).steps == ((21, "newer than the status"),)


def test_notes_that_are_written_at_once_are_all_kept(folder):
    run = make_run(folder, "mine")

    def write(first: int) -> None:
        for step in range(first, first + 10):
            change_notes(run, add=[f"tag {step}"], at_step=(step, f"note {step}"))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (1, 11)))
    assert [step for step, _ in read_notes(run).steps] == list(range(1, 21))
    assert len(read_notes(run).tags) == 20


@pytest.mark.parametrize("name", ["mine", "./mine"])
def test_a_run_goes_to_the_trash_and_comes_back(folder, monkeypatch, name):
    run = make_run(folder, "mine")
    assert answer("delete", "mine", "--trash").code == 0
    assert not run.exists()
    assert "no runs in" in answer("runs").out
    assert "which holds mine" in refused("restore", "other")
    assert answer("restore", run.path).code == 0
    assert run.exists()
    assert answer("delete", "mine", "--trash").code == 0
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LABKIT_HOME", str(folder / "another"))
    assert answer("restore", name).code == 0
    assert run.exists()


def test_a_run_of_another_folder_comes_back_by_its_name_too(folder, tmp_path):
    run = make_run(tmp_path / "another", "mine")
    remember(run)
    assert answer("delete", "mine", "--trash").code == 0
    assert "give the directory that it had" in refused("restore", "other")
    assert answer("restore", "mine").code == 0
    assert run.exists()


def test_the_documented_commands(folder):
    make_run(folder, "first", step=120)
    for text in (
        'note first --tag paper --text "batch size as in the paper"',
        "note first --remove-tag paper --archive",
        "note first --unarchive",
        'note first 120 "rate halved"',
        "rename first baseline",
        "delete baseline --trash",
        "restore baseline",
    ):
        assert answer(*shlex.split(text)).code == 0


# ---- rename --------------------------------------------------------------------------------------------


@pytest.fixture
def runs(folder):
    """``old``, and a fork of it."""
    change_notes(make_run(folder, "old"), add=["paper"])
    fork = make_run(folder, "old-fork-5")
    write_lineage(fork, Lineage(str(folder / "old"), 5, {"learning_rate": (0.1, 0.01)}))
    return folder


def test_a_run_gets_another_name_and_its_forks_follow(runs):
    make_run(runs, "elder")
    write_lineage(RunDirectory(runs / "old"), Lineage(str(runs / "elder"), 3, {}))
    code, said, _ = answer("rename", "old", "new")
    assert code == 0 and not (runs / "old").exists()
    assert read_notes(RunDirectory(runs / "new")).tags == ("paper",)
    lineage = read_lineage(RunDirectory(runs / "old-fork-5"))
    assert lineage == Lineage(str(runs / "new"), 5, {"learning_rate": (0.1, 0.01)})
    assert read_lineage(RunDirectory(runs / "new")).parent == str(runs / "elder")
    assert "old-fork-5, a fork of it, names its new directory" in said and "starts a new run" not in said
    assert answer("show", "new").code == 0


def test_a_command_that_would_start_anew_after_a_rename_is_named(folder):
    make_run(folder, "resnet8-shapes-0123abcd-2gpus")
    said = answer("rename", "resnet8-shapes-0123abcd-2gpus", "new").out
    assert "starts a new run, resnet8-shapes-0123abcd-2gpus; labkit resume new goes on with this one" in said


def test_a_rename_lists_no_other_runs_outside_of_labkits_home_than_before(runs, tmp_path):
    other = make_run(tmp_path / "elsewhere", "old")
    remember(other)
    assert answer("rename", other.path, "new").code == 0
    names = [run["name"] for run in json.loads(answer("runs", "--json").out)]
    assert sorted(names) == ["new", "old", "old-fork-5"], "it is listed, as before"
    unlisted = make_run(tmp_path / "of somebody else", "theirs")
    assert answer("rename", unlisted.path, "renamed").code == 0
    listed = [run["name"] for run in json.loads(answer("runs", "--json").out)]
    assert listed == names, "it isn't listed, as before"


def test_what_keeps_the_old_name_is_said(runs):
    make_run(runs, "later", start_from="old")
    change_notes(make_run(runs, "noted"), note="better than old, see there")
    change_notes(make_run(runs, "unrelated"), note="the older one; old-fork-5 too")
    said = answer("rename", "old", "new").out
    assert "later records that it started from old" in said
    assert "the note on noted names old" in said
    assert "unrelated" not in said


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", ".hidden", "-x", "a\nb", "old", "old-fork-5"])
def test_a_name_that_is_none_or_is_taken_is_refused(runs, name):
    before = tree(runs)
    refused("rename", "old", *(["--"] if name == "-x" else []), name)
    assert tree(runs).keys() == before.keys()


def test_a_run_that_is_being_written_and_one_of_a_comparison_keep_their_names(runs, tmp_path):
    lock = RunLock(RunDirectory(runs / "old"))
    assert lock.acquire()
    try:
        assert "old is running; labkit stop old stops it" in refused("rename", "old", "new")
        assert "old is running" in refused("delete", "old", "--trash")
    finally:
        lock.release()
    assert (runs / "old").is_dir()
    make_run(tmp_path / "comparison", "resnet8-seed0")
    (tmp_path / "comparison" / "comparison.json").write_text("{}")
    assert "belongs to" in refused("rename", tmp_path / "comparison" / "resnet8-seed0", "new")
