"""The pages Data and Map: shown at once, computed in the background, a sentence for whatever is missing."""

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from PIL.Image import Resampling
from streamlit.testing.v1 import AppTest

import labkit
from app.data_set import image_map
from app.data_set.image_map import THUMBNAIL, ImageMap
from app.images import answers
from app.images.cards import shrunk
from app.views.data import prepare_command
from labkit.data.manifest import Manifest
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.browser import browser_visit, dashboard
from tests.app.test_pages import checked, words
from tests.tiny import prepare_tiny

PATIENCE = 120
PARTS = ["Samples", "Augmentation", "Balance and pixels", "Duplicates", "Suspected labels", "Source"]
MARKUP = "<i>disc</i>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Iterator[RunDirectory]:
    """A run on a data set with a class name of markup, a duplicate, and fewer images than a map needs."""
    folder = tmp_path_factory.mktemp("trained")
    manifest = prepare_tiny(folder / "whole")
    splits = {name: load_split(manifest, name) for name in manifest.splits}
    splits["test"][0][5] = splits["train"][0][3]
    classes = (MARKUP, *manifest.classes[1:])
    write_derived(manifest, folder / "data", splits, classes=classes)
    fields = {"dataset": "shapes", "model": "tutorial_cnn", "train_batch_size": 16, "train_steps": 2}
    labkit.train(**fields, num_gpus=0, data_dir=folder / "data", job_dir=folder / "runs" / "first")
    yield RunDirectory(folder / "runs" / "first")
    answers.networks().close()


@pytest.fixture
def run(trained, monkeypatch) -> RunDirectory:
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return trained


@pytest.fixture
def copy(run, tmp_path) -> RunDirectory:
    """The run with a data set of its own, to be damaged."""
    shutil.copytree(run.path, tmp_path / "run")
    shutil.copytree(run.path.parents[1] / "data", tmp_path / "data")
    copied = RunDirectory(tmp_path / "run")
    config = copied.read_config()
    config["data"]["data_dir"] = str(tmp_path / "data")
    write_json_atomic(copied.config_path, config)
    return copied


def open_page(page: str, run: RunDirectory, part: str = "") -> AppTest:
    at = AppTest.from_string(f"from app.views import {page}\n{page}.page()", default_timeout=PATIENCE)
    at.session_state["run"] = str(run.path)
    if part:
        at.query_params["part"] = part
    return finished(checked(at.run()))


def finished(at: AppTest) -> AppTest:
    end = time.monotonic() + PATIENCE
    while "hourglass" in words(at):
        assert time.monotonic() < end, words(at)
        time.sleep(0.3)
        checked(at.run())
    return at


def html_of(at: AppTest) -> str:
    return "".join(element.proto.body for element in at.get("html"))


def test_every_part_is_drawn_with_links_and_without_the_markup_of_a_class(run):
    shown = {part: open_page("data", run, part) for part in PARTS}
    for at in shown.values():
        assert "180 train, 20 validation, 40 test" in words(at)
        assert MARKUP not in html_of(at)
    samples = html_of(shown["Samples"])
    assert "&lt;i&gt;disc" in samples
    assert len(re.findall(r'href="image\?run=[^"]*split=train&amp;index=\d+', samples)) >= 100
    assert "epoch 11" in html_of(shown["Augmentation"])
    assert "random crop after padding by 4 pixels" in words(shown["Augmentation"]).replace("\\", "")
    assert "used for standardization" in str(shown["Balance and pixels"].dataframe[0].value)
    duplicates = html_of(shown["Duplicates"])
    assert "train #3" in duplicates and "test #5" in duplicates
    assert "labkit" in words(shown["Source"]) and "SHA-256" in words(shown["Source"])


@pytest.mark.long
def test_suspected_labels_are_looked_for_when_asked_and_in_sample_is_said(run):
    at = open_page("data", run, "Suspected labels")
    assert "Out of sample" in words(at)
    [button] = [button for button in at.button if "Look through the 40 test images" in button.label]
    finished(checked(button.click().run()))
    assert re.search(r"labels are suspected|No label of the 40", words(at))
    finished(checked(at.segmented_control(key="labels-split").set_value("train").run()))
    assert "in sample" in words(at) and "hint" in words(at)


@pytest.mark.long
def test_the_map_lists_a_class_without_the_mouse(run):
    at = open_page("image_map", run)
    assert "40 test images, placed by t-SNE" in words(at)
    count = int((load_split(_data_of(run), "test")[1] == 0).sum())
    checked(at.selectbox(key="map-class").set_value(0).run())
    assert f"**{count:,} images**" in words(at)
    assert html_of(at).count('href="image?run=') == count
    assert MARKUP not in html_of(at)


def _data_of(run: RunDirectory) -> Manifest:
    from labkit.data.of_run import data_set_of

    return data_set_of(run)


@pytest.mark.parametrize("page", ["data", "image_map"])
def test_a_data_set_that_is_gone_or_other_is_named_with_a_command_that_brings_it_back(
    copy, page, monkeypatch, tmp_path
):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))  # which doesn't have the same data
    folder = copy.path.parent / "data"
    shutil.rmtree(folder)
    at = open_page(page, copy)
    assert "no prepared 'shapes' data set" in words(at).replace("\\", "")
    assert at.code[0].value.startswith("labkit data prepare --dataset shapes --data-dir")
    prepare_tiny(folder)
    at = open_page(page, copy)
    assert "was trained on other data" in words(at).replace("\\", "")
    assert "labkit data prepare" in at.code[0].value


def test_the_command_brings_back_what_was_prepared_otherwise(make_run, tmp_path):
    made = make_run()
    config = labkit.Config.from_flat({"dataset": "shapes", "data_dir": str(tmp_path / "a b")})
    write_json_atomic(made.config_path, config.to_json())
    manifest = prepare_tiny(tmp_path / "a b")
    counts = {"train": 120, "validation": 80, "test": 40}
    data = {"checksum": "0" * 64, "counts": counts, "classes": list(manifest.classes)}
    write_json_atomic(made.environment_path, {"data": data})
    command = shlex.split(prepare_command(made))
    assert command[-4:] == ["--data-dir", str(tmp_path / "a b"), "--validation-size", "80"]
    asked = subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, timeout=60)
    assert asked.returncode == 0


def test_damaged_shards_give_a_sentence_on_every_part(copy):
    for shard in (copy.path.parent / "data" / "shapes").glob("*.tfrecord"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    for part in PARTS[:-1]:
        text = words(open_page("data", copy, part)).replace("\\", "")
        assert "damaged or missing" in text and "labkit data prepare --dataset shapes" in text, part
    assert "damaged" in words(open_page("image_map", copy)).replace("\\", "")
    assert "Split train" in words(open_page("data", copy, "Source"))


def test_a_run_without_checkpoints_says_how_to_keep_some(copy):
    shutil.rmtree(copy.checkpoints_path)
    for at in (open_page("image_map", copy), open_page("data", copy, "Suspected labels")):
        assert "--keep-checkpoints" in at.code[0].value


def shown_map(count: int, classes: int = 3, channels: int = 3, several: bool = False) -> ImageMap:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (count, classes)) if several else rng.integers(0, classes, count)
    return ImageMap(
        np.arange(count),
        rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        shrunk(rng.integers(0, 256, (count, 48, 40, channels)).astype(np.uint8), THUMBNAIL, Resampling.BOX),
        labels.astype(np.int32),
        rng.random((count, classes)),
        count,
    )


def test_a_hundred_classes_have_a_mark_each_and_names_are_escaped():
    shown = shown_map(400, 100)
    marks = image_map.marks_of_classes(shown, [f"<i>{n}" for n in range(100)], None)
    assert len(set(zip(marks.colors[:100], marks.shapes[:100], strict=True))) == 100
    assert "<i>" not in image_map.legend(marks)
    several = image_map.marks_of_classes(shown_map(50, 4, several=True), list("abcd"), 2)
    assert list(several.faint) == [True, True, False, True, True]


@pytest.mark.parametrize(("count", "channels"), [(1, 3), (5, 1)])
def test_thumbnails_of_any_image_are_on_one_sheet(count, channels):
    uri, size, columns = image_map.sprite(shown_map(count, channels=channels).thumbnails)
    assert uri.startswith("data:image/jpeg;base64,")
    assert size == (27, 32)
    assert columns**2 >= count
    assert len(image_map.marks_of_right(dataclasses.replace(shown_map(count))).kind) == count


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.slow
def test_what_is_drawn_around_on_the_map_is_listed(run):
    with browser_visit() as visit, dashboard(run.path.parents[1]) as (address, _):
        page = visit.page
        page.goto(f"{address}/map?run=first")
        canvas = page.locator(".lk-map > canvas")
        canvas.wait_for(timeout=PATIENCE * 1000)
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        left, top = box["x"] + 2, box["y"] + 2
        page.mouse.move(left, top)
        page.mouse.down()
        for x, y in ((box["width"] - 4, 0), (box["width"] - 4, box["height"] - 4), (0, box["height"] - 4)):
            page.mouse.move(left + x, top + y, steps=3)
        page.mouse.up()
        page.get_by_text("40 images").wait_for()
        page.wait_for_function("""() => document.querySelectorAll('a[href*="split=test"]').length === 36""")
        visit.went_well()
