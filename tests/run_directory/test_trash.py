"""Notes of people and the trash: what they keep, what they refuse."""

import json
import os
import socket
import time

import pytest

from labkit.errors import InputError
from labkit.run_directory import RunLock, list_runs
from labkit.run_directory.disk import discard, holds_something_else
from labkit.run_directory.notes import (
    MAX_NOTE,
    MAX_STEP_NOTE,
    MAX_TAG,
    MAX_TAGS,
    Notes,
    change_notes,
    read_notes,
)
from labkit.run_directory.stop import delete_for_good, list_trash, move_to_trash, restore
from tests.commands.in_process import tree
from tests.commands.made_runs import make_run


def test_notes_are_kept_and_changed_one_by_one_until_they_are_damaged(tmp_path):
    run = make_run(tmp_path, "a")
    assert read_notes(run) == Notes()
    change_notes(run, add=["one", " two "], note="first\nsecond")
    change_notes(run, add=["one"], remove=["two"], archived=True)
    discard(run)  # to overwrite it
    assert not holds_something_else(run)
    assert read_notes(run) == Notes(("one",), "first\nsecond", True)
    kept = {"tags": ["one"], "note": "first\nsecond", "archived": True, "steps": {}}
    assert json.loads(run.notes_path.read_text()) == kept
    run = make_run(tmp_path, "b")
    for content in ("", "[]", '{"tags": 3, "note": [], "archived": 1}', '{"tags": ["", 3], "note": null}'):
        run.notes_path.write_text(content)
        assert read_notes(run) == Notes()
        assert change_notes(run, add=["x"]).tags == ("x",)


def test_a_note_is_replaced_only_if_it_is_the_one_that_was_read(tmp_path):
    run = make_run(tmp_path, "a")
    change_notes(run, note="first", instead_of="")
    with pytest.raises(InputError, match="the note on a was changed meanwhile; .*: first"):
        change_notes(run, note="second", add=["x"], instead_of="")
    assert read_notes(run) == Notes((), "first")
    assert change_notes(run, note="", instead_of="first") == Notes()


def test_notes_on_steps_are_in_order_of_step_and_an_empty_one_is_removed(tmp_path):
    run = make_run(tmp_path, "a")
    for step, text in ((100, " rate halved "), (9, "warm-up ends"), (20, "x")):
        change_notes(run, at_step=(step, text))
    change_notes(run, at_step=(20, " "), add=["kept"])
    assert read_notes(run) == Notes(("kept",), steps=((9, "warm-up ends"), (100, "rate halved")))
    assert json.loads(run.notes_path.read_text())["steps"] == {"9": "warm-up ends", "100": "rate halved"}
    for steps in ([], {"a": "x"}, {"0": "x"}, {"1": 2}, {"1": ""}, {"1": "x" * 200}, {"1": "a\nb"}, 7):
        run.notes_path.write_text(json.dumps({"tags": ["kept"], "steps": steps}))
        assert read_notes(run) == Notes(("kept",)), steps


@pytest.mark.parametrize(
    "change",
    [
        {"add": ["x" * (MAX_TAG + 1)]},
        {"add": [""]},
        {"add": ["a\nb"]},
        {"add": ["a\x7f"]},
        {"add": [f"tag {number}" for number in range(MAX_TAGS + 1)]},
        {"note": "x" * (MAX_NOTE + 1)},
        {"note": "\x1b[2J"},
        {"note": "\ud800"},
        {"at_step": (0, "x")},
        {"at_step": (3, "x" * (MAX_STEP_NOTE + 1))},
        {"at_step": (3, "a\nb")},
    ],
)
def test_what_is_beyond_the_limits_changes_nothing(tmp_path, change):
    run = make_run(tmp_path, "a")
    change_notes(run, add=["kept"], note="kept")
    with pytest.raises(InputError) as raised:
        change_notes(run, **change)
    assert "\n" not in str(raised.value)
    assert read_notes(run) == Notes(("kept",), "kept")


def test_a_run_goes_to_the_trash_and_back_whole(tmp_path):
    run = make_run(tmp_path, "a")
    (run.path / "thesis.tex").write_text("mine")
    before = {path: about for path, about in tree(run.path).items() if path.name[0] != "."}
    move_to_trash(run, [tmp_path])
    [trashed] = list_trash(tmp_path)
    assert list_runs(tmp_path) == [] and trashed.name == "a" and abs(trashed.moved - time.time()) < 60
    restore(trashed)
    assert before.items() <= tree(run.path).items() and list_trash(tmp_path) == []


def test_runs_of_one_name_get_places_of_their_own(tmp_path):
    for _ in range(3):
        move_to_trash(make_run(tmp_path, "a"), [tmp_path])
    run = make_run(tmp_path, "a")
    assert len(list_trash(tmp_path)) == 3
    assert {one.name for one in list_trash(tmp_path)} == {"a"}
    with pytest.raises(InputError, match="there is another"):
        restore(list_trash(tmp_path)[0])
    assert run.exists()


def test_deleting_for_good_follows_no_link(tmp_path):
    run = make_run(tmp_path / "runs", "a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (run.path / "link").symlink_to(outside)
    trashed = move_to_trash(run, [tmp_path / "runs"])
    delete_for_good(trashed)
    assert (outside / "file").exists()
    assert list_trash(tmp_path / "runs") == []
    with pytest.raises(InputError, match="no longer in the trash"):
        delete_for_good(trashed)


def test_only_runs_directly_in_a_known_folder_are_moved(tmp_path):
    runs, other = tmp_path / "runs", tmp_path / "other"
    run, elsewhere = make_run(runs, "a"), make_run(other, "b")
    (runs / "link").symlink_to(elsewhere.path)
    (runs / "folder").mkdir()
    kind = type(run)
    for wrong in (
        elsewhere.path,
        runs / "link",
        runs / "folder",
        runs / ".." / "other" / "b",
        runs / "a" / "..",
        runs,
    ):
        with pytest.raises(InputError):
            move_to_trash(kind(wrong), [runs])
    (runs / ".trash").symlink_to(other)
    with pytest.raises(InputError, match="is a link"):
        move_to_trash(run, [runs])
    assert run.exists() and elsewhere.exists()


def test_a_run_that_is_being_trained_is_refused(tmp_path):
    run = make_run(tmp_path, "a")
    lock = RunLock(run)
    assert lock.acquire()
    with pytest.raises(InputError, match="a is running; labkit stop a stops it"):
        move_to_trash(run, [tmp_path])
    lock.release()
    far = make_run(tmp_path, "far", state="running", host="elsewhere", heartbeat=time.time(), pid=os.getpid())
    assert socket.gethostname() != "elsewhere"
    with pytest.raises(InputError, match="running on host 'elsewhere'"):
        move_to_trash(far, [tmp_path])
    assert run.exists() and far.exists()
