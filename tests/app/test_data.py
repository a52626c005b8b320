"""The pages Data and Map: shown at once, computed in the background, a sentence for whatever is missing."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Resampling
from streamlit.testing.v1 import AppTest

from app.ask.client import Pairs
from app.data_set import image_map
from app.data_set.image_map import THUMBNAIL, ImageMap
from app.data_set.scan import scan_data
from app.images.cards import shrunk
from app.views.data import command_to_prepare
from labkit.analysis.predictions import Predictions
from labkit.data.of_run import data_set_of
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.checkpoints import checkpoint_path
from tests.app.conftest import MARKUP, change_environment, configure
from tests.app.pages import checked, commands_of, finished, html_of, open_page, press, words
from tests.tiny import prepare_tiny

PARTS = ["Samples", "Augmentation", "Balance and pixels", "Duplicates", "Unusual images"]
PARTS += ["Suspected labels", "Source"]


@pytest.fixture
def run(trained_home) -> RunDirectory:
    return trained_home


@pytest.fixture
def copy(run, tmp_path) -> RunDirectory:
    """The run with a data set of its own, to be damaged."""
    shutil.copytree(run.path.parents[1] / "data", tmp_path / "data")
    copied = RunDirectory(shutil.copytree(run.path, tmp_path / "run"))
    config = copied.read_config()
    config["data"]["data_dir"] = str(tmp_path / "data")
    write_json_atomic(copied.config_path, config)
    return copied


def open_part(page: str, run: RunDirectory, part: str = "") -> AppTest:
    return finished(open_page(page, run, **({"part": part} if part else {})))


@pytest.mark.long
def test_every_part_is_drawn_with_links_and_without_the_markup_of_a_class(run):
    shown = {part: open_part("data", run, part) for part in PARTS}
    for at in shown.values():
        assert "180 train, 20 validation, 40 test" in words(at)
        assert MARKUP not in html_of(at)
    samples = html_of(shown["Samples"])
    assert "&lt;i&gt;disc" in samples
    assert len(re.findall(r'href="image\?run=[^"]*split=train&amp;index=\d+', samples)) >= 100
    assert "epoch 11" in html_of(shown["Augmentation"])
    assert "random crop after padding by 4 pixels" in words(shown["Augmentation"])
    assert "used for standardization" in str(shown["Balance and pixels"].dataframe[0].value)
    duplicates = html_of(shown["Duplicates"])
    assert "train #3" in duplicates and "test #5" in duplicates
    assert "labkit" in words(shown["Source"]) and "SHA-256" in words(shown["Source"])


@pytest.mark.long
def test_suspected_labels_are_looked_for_when_asked_and_in_sample_is_said(run):
    at = open_part("data", run, "Suspected labels")
    assert "Out of sample" in words(at)
    [label] = [one.label for one in at.button if "Look through the 40 test images" in one.label]
    finished(press(at, label))
    assert re.search(r"labels are suspected|No label of the 40", words(at))
    finished(checked(at.segmented_control(key="labels-split").set_value("train").run()))
    assert "in sample" in words(at) and "hint" in words(at)


@pytest.mark.long
def test_images_that_stand_out_come_first_and_pairs_when_asked(run):
    at = open_part("data", run, "Unusual images")
    images, _ = load_split(data_set_of(run), "train")
    order = np.argsort(images.mean(axis=(1, 2, 3)), kind="stable")
    assert "Odd sizes" not in at.segmented_control(key="unusual").options  # no files to have sizes
    for kind, rows in (("Darkest", order), ("Brightest", order[::-1])):
        checked(at.segmented_control(key="unusual").set_value(kind).run())
        found = re.findall(r'href="image\?run=[^"]*split=train&amp;index=(\d+)"', html_of(at))
        values = images[[int(row) for row in found]].mean(axis=(1, 2, 3))
        np.testing.assert_allclose(values, images[rows[:24]].mean(axis=(1, 2, 3)))
        assert f"brightness {values[0] / 255:.3g}" in html_of(at)
    checked(at.segmented_control(key="unusual").set_value("Nearly alike").run())
    finished(press(at, "Compare the images"))
    distances = [float(far) for far in re.findall(r"distance ([\d.e+-]+)<", html_of(at))]
    assert len(distances) == 12 and distances == sorted(distances) and distances[0] > 0
    pairs = re.findall(r"split=(train|test)&amp;index=\d+", html_of(at))
    assert pairs[::2] == ["train"] * 12 and pairs[1::2] == ["test"] * 12


@pytest.mark.parametrize(
    ("part", "button"), [("Unusual images", "Compare"), ("Suspected labels", "Look through")]
)
def test_a_newer_checkpoint_leaves_what_was_asked_of_the_network(copy, part, button):
    (copy.predictions_path / "test.json").unlink()  # of one step, which would be asked
    at = open_part("data", copy, part)
    if part == "Unusual images":
        checked(at.segmented_control(key="unusual").set_value("Nearly alike").run())
    [label] = [one.label for one in at.button if one.label.startswith(button)]
    press(at, label)
    last = checkpoint_path(copy.checkpoints_path, copy.checkpoint_steps()[-1])
    newer = shutil.copytree(last, checkpoint_path(copy.checkpoints_path, copy.checkpoint_steps()[-1] + 1))
    state = json.loads((newer / "state.json").read_text())
    (newer / "state.json").write_text(json.dumps(state | {"best_step": copy.checkpoint_steps()[-1]}))
    finished(checked(at.run()))
    assert label not in [one.label for one in at.button]


def test_pairs_of_equal_pixels_alone_are_not_called_none(run):
    def draw(scan, found):
        from app.data_set.unusual import _pairs

        _pairs(scan, "train", "test", found)

    found = Pairs(np.array([3]), np.array([5]), np.zeros(1))  # test image 5 is train image 3
    at = AppTest.from_function(draw, args=(scan_data(data_set_of(run)), found)).run()
    assert "The 1 nearest have equal pixels" in words(checked(at))


@pytest.mark.long
def test_pictures_of_an_odd_size_come_first(tmp_path, run, make_run):
    random = np.random.default_rng(0)
    for number, (width, height) in enumerate([(40, 40)] * 30 + [(40, 90), (44, 40)] * 5):
        folder = tmp_path / "pictures" / ("a", "b")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    manifest = prepare(data_dir=tmp_path / "data", name="mine", images=tmp_path / "pictures", image_size=16)
    manifest = manifest.manifest
    made = make_run()
    configure(made, data_dir=str(tmp_path / "data"), dataset="mine")
    change_environment(made, data={"checksum": manifest.checksum})
    at = open_part("data", made, "Unusual images")
    checked(at.segmented_control(key="unusual").set_value("Odd sizes").run())
    shown = re.findall(r"(\d+)×(\d+) pixels", html_of(at))
    assert shown and ("40", "40") not in shown
    assert shown == sorted(shown, key=lambda size: size != ("40", "90"))  # the farthest first


@pytest.mark.long
def test_the_map_lists_a_class_without_the_mouse(run):
    at = open_part("image_map", run)
    assert "40 test images, placed by t-SNE" in words(at)
    count = int((load_split(data_set_of(run), "test")[1] == 0).sum())
    checked(at.selectbox(key="map-class").set_value(0).run())
    assert f"**{count:,} images**" in words(at)
    assert html_of(at).count('href="image?run=') == count
    assert MARKUP not in html_of(at)


@pytest.mark.parametrize("page", ["data", "image_map"])
def test_a_data_set_that_is_gone_or_other_is_named_with_a_command_that_brings_it_back(
    copy, page, monkeypatch, tmp_path
):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))  # which doesn't have the same data
    folder = copy.path.parent / "data"
    shutil.rmtree(folder)
    at = open_part(page, copy)
    assert "no prepared 'shapes' data set" in words(at)
    assert commands_of(at)[-1].startswith("labkit data prepare --dataset shapes --data-dir")
    prepare_tiny(folder)
    at = open_part(page, copy)
    assert "was trained on other data" in words(at)
    assert "labkit data prepare" in commands_of(at)[-1]


def test_the_command_brings_back_what_was_prepared_otherwise(make_run, tmp_path):
    made = make_run()
    configure(made, data_dir=str(tmp_path / "a b"))
    manifest = prepare_tiny(tmp_path / "a b")
    counts = {"train": 120, "validation": 80, "test": 40}
    data = {"checksum": "0" * 64, "counts": counts, "classes": list(manifest.classes)}
    change_environment(made, data=data)
    command = shlex.split(command_to_prepare(made))
    assert command[-4:] == ["--data-dir", str(tmp_path / "a b"), "--validation-size", "80"]
    asked = subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, timeout=60)
    assert asked.returncode == 0


def test_damaged_shards_give_a_sentence_on_every_part(copy):
    for shard in (copy.path.parent / "data" / "shapes").glob("*.tfrecord"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    for part in PARTS[:-1]:
        text = words(open_part("data", copy, part))
        assert "damaged or missing" in text and "labkit data prepare --dataset shapes" in text, part
    assert "damaged" in words(open_part("image_map", copy))
    assert "Split train" in words(open_part("data", copy, "Source"))


def test_a_run_without_checkpoints_says_how_to_keep_some(copy):
    shutil.rmtree(copy.checkpoints_path)
    for at in (open_part("image_map", copy), open_part("data", copy, "Suspected labels")):
        assert "--keep-checkpoints" in commands_of(at)[-1]


def shown_map(count: int, classes: int, several: bool = False) -> ImageMap:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (count, classes)) if several else rng.integers(0, classes, count)
    images = shrunk(rng.integers(0, 256, (count, 48, 40, 3)).astype(np.uint8), THUMBNAIL, Resampling.BOX)
    names = [f"<i>{number}" for number in range(classes)]
    predictions = Predictions(images, labels, rng.random((count, classes)), np.arange(count), names)
    return ImageMap(rng.uniform(-1, 1, (count, 2)).astype(np.float32), predictions, count)


def test_a_hundred_classes_have_a_mark_each_thumbnails_a_sheet_and_names_are_escaped():
    shown = shown_map(400, 100)
    uri, size, columns = image_map.sprite(shown.predictions.images)
    assert uri.startswith("data:image/jpeg;base64,")
    assert size == (27, 32) and columns**2 >= 400
    assert len(image_map.marks_of_right(shown).kind) == 400
    marks = image_map.marks_of_classes(shown, [f"<i>{n}" for n in range(100)], None)
    assert len(set(zip(marks.colors[:100], marks.shapes[:100], strict=True))) == 100
    assert "<i>" not in image_map.legend(marks)
    several = image_map.marks_of_classes(shown_map(50, 4, several=True), list("abcd"), 2)
    assert list(several.faint) == [True, True, False, True, True]
