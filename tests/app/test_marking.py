"""Marks on pages: what a person says of images, who may, and the data set that is made of it."""

import re
import shutil

import numpy as np
import pytest

from app.data_set.scan import scan_data
from app.data_set.wrong_labels import SuspectedLabels, _not_kept
from app.images import cards, marking
from labkit.data.manifest import find_manifest
from labkit.data.marks import marks_path, read_marks
from labkit.data.of_run import data_set_of
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.browser import IDLE, dashboard, still, visiting
from tests.app.conftest import MARKUP
from tests.app.pages import button, checked, commands_of, finished, html_of, open_page, press, words


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> RunDirectory:
    """The trained run and its data set in a home of their own."""
    shutil.copytree(trained.path.parents[1] / "data", tmp_path / "data")
    copied = RunDirectory(shutil.copytree(trained.path, tmp_path / "runs" / "first"))
    config = copied.read_config()
    config["data"]["data_dir"] = None
    write_json_atomic(copied.config_path, config)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return copied


def shown_of(manifest, *places):
    """Return what a page shows of images whose suggested class is the one after theirs."""
    labels = {split: load_split(manifest, split)[1] for split in manifest.splits}
    card, made = cards.Card(np.zeros((8, 8, 3), np.uint8), ["x"]), {}
    for split, index in places:
        label = int(labels[split][index])
        made[f"{split} {index}"] = marking.Markable(card, split, index, label, (label + 1) % 10)
    return made


def test_what_is_said_of_ticked_images_is_what_is_marked(run):
    data = data_set_of(run)
    shown = shown_of(data, ("train", 3), ("test", 5), ("test", 6))

    def say(kind, *places, label=""):
        marking.say(data, shown, {"kind": kind, "label": label, "places": list(places)})
        return {place: read_marks(data).of(one.split, one.index) for place, one in shown.items()}

    found = say("label", "train 3", "test 5")
    for place in ("train 3", "test 5"):
        assert found[place].old == data.classes[shown[place].label]
        assert found[place].new == data.classes[shown[place].suggested]
    assert found["test 6"] is None
    assert say("label", "test 5", label="0")["test 5"].new == MARKUP
    assert say("exclude", "test 6")["test 6"].mark == "exclude"
    assert say("keep", "test 6")["test 6"].mark == "keep"
    assert say("none", "test 6")["test 6"] is None
    before = marks_path(data).read_bytes()
    for broken in (
        None,
        {},
        {"kind": "label", "label": "99", "places": ["train 3"]},
        {"kind": 3, "label": "x"},
    ):
        marking.say(data, shown, broken)
    marking.say(data, shown, {"kind": "exclude", "label": "", "places": ["train 99999"]})  # isn't on the page
    assert marks_path(data).read_bytes() == before


def test_a_page_that_may_not_act_shows_marks_and_no_controls(run, monkeypatch):
    data = data_set_of(run)
    shown = shown_of(data, ("test", 5))
    marking.say(data, shown, {"kind": "exclude", "label": "", "places": ["test 5"]})
    monkeypatch.setenv("LABKIT_READ_ONLY", "1")
    for at in (open_page("predictions", run), finished(open_page("data", run, part="Duplicates"))):
        assert "checkbox" not in html_of(at) and "data-kind" not in html_of(at)
        assert not {"Undo", "Make the corrected data set"} & {one.label for one in at.button}
        assert "1 mark** of shapes: 0 wrong labels, 1 to exclude" in words(at)
        assert commands_of(at)[-1] == "labkit data correct shapes --name shapes-fixed"
    assert "marked: excluded" in html_of(finished(open_page("data", run, part="Duplicates")))
    with pytest.raises(InputError, match="read-only"):
        marking.say(data, shown, {"kind": "keep", "label": "", "places": ["test 5"]})
    assert read_marks(data).of("test", 5).mark == "exclude"


def test_marks_are_counted_undone_and_made_into_a_data_set_that_a_new_run_is_offered(run):
    data = data_set_of(run)
    at = finished(open_page("data", run, part="Duplicates"))
    assert html_of(at).count('type="checkbox"') == 2 and "&lt;i&gt;disc" in html_of(at)
    assert MARKUP not in html_of(at)
    assert "Tick images" in words(at) and button(at, "Undo") is None
    marking.say(data, shown_of(data, ("test", 5)), {"kind": "exclude", "label": "", "places": ["test 5"]})
    press(checked(at.run()), "Make the corrected data set")
    finished(at)
    assert "`shapes-fixed` is made of these marks" in words(at)
    made = find_manifest(data.directory.parent, "shapes-fixed")
    assert made.source["excluded"] == {"train": 0, "validation": 0, "test": 1}
    form = open_page("start", "", again=str(run.path), dataset="shapes-fixed")
    [command] = [one for one in commands_of(form) if "labkit train" in one]
    assert "--dataset shapes-fixed" in command and "--train-steps 6" in command


def test_images_that_were_looked_at_are_no_longer_suspected(run):
    data = data_set_of(run)
    shown = shown_of(data, ("test", 5), ("test", 9))
    marking.say(data, shown, {"kind": "keep", "label": "", "places": ["test 9"]})
    each = np.zeros((2, 10), bool)
    found = SuspectedLabels(np.array([9, 5]), np.array([0.1, 0.2]), each, each, 40)
    left = _not_kept(scan_data(data), "test", found)
    assert (left.index.tolist(), left.score.tolist(), left.looked_at) == ([5], [0.2], 40)
    assert len(_not_kept(scan_data(data), "train", found)) == 2


def test_marks_of_other_data_are_named_on_the_page_and_nothing_can_be_ticked(run):
    data = data_set_of(run)
    marking.say(data, shown_of(data, ("test", 5)), {"kind": "keep", "label": "", "places": ["test 5"]})
    path = marks_path(data)
    path.write_text(path.read_text().replace(data.checksum, "0" * 64))
    at = open_page("predictions", run)
    assert "has marks of other data" in words(at) and "checkbox" not in html_of(at)
    assert "lk-card" in html_of(at)


@pytest.mark.slow
@pytest.mark.long
def test_a_person_marks_takes_back_and_corrects_in_a_browser(run, tmp_path, browser):
    with dashboard(tmp_path) as (address, _), visiting(browser) as visit:
        page = visit.page
        page.goto(f"{address}/predictions?run=first")
        boxes = page.locator(".lk-tick input")
        still(boxes.first)
        boxes.nth(0).check()
        boxes.nth(1).check()
        page.get_by_role("button", name="Exclude").click()
        page.get_by_text("2 marks").wait_for()
        page.wait_for_function(IDLE)
        boxes.nth(2).check()
        page.get_by_label("Right class").select_option("ring")
        page.get_by_role("button", name="Wrong label").click()
        page.get_by_text("3 marks").wait_for()
        page.get_by_text("marked: ring").wait_for()
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("2 marks").wait_for()
        page.get_by_role("button", name="Make the corrected data set").click()
        page.get_by_text("is made of these marks").wait_for()
        page.wait_for_function(IDLE)
        page.get_by_role("link", name="Again with the corrected data").first.click()
        page.get_by_text(re.compile("--dataset shapes-fixed")).first.wait_for()
        visit.went_well()
    assert find_manifest(tmp_path / "data", "shapes-fixed").count("test") == 38
