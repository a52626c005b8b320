"""Parts of a split: each image in its part, the worst first, with intervals that hold."""

import csv
import dataclasses
import math
import shutil

import numpy as np
import pytest
from PIL import Image
from scipy import stats

import labkit
from labkit.analysis import slices
from labkit.analysis.predictions import Predictions, load_predictions
from labkit.analysis.slices import slices_by
from labkit.commands import main as cli
from labkit.data.manifest import columns_of, load_manifest, write_columns
from labkit.data.prepare import prepare
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.properties.harness import train

CAMERAS = ("old", "new", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures of two classes, as a table lists them: dark ones by the old camera."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    with open(folder / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "camera", "label", "Day", "split"])
        for number in range(60):
            camera = CAMERAS[number % 3]
            side = 16 + number % 5
            pixels = random.integers(0, 60 if camera == "old" else 256, (side, 20, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            split = "test" if number >= 36 else "train"
            table.writerow([f"{number}.png", camera, ("cat", "dog")[number % 2], number, split])
    return folder


@pytest.fixture(scope="module")
def manifest(folder):
    return prepare(None, folder / "data", images=folder / "all.csv", image_size=16).manifest


def predictions_of(manifest, wrong):
    """Predictions of the test split, wrong where it is asked for."""
    labels = np.zeros(manifest.count("test"), np.int64)
    shares = np.stack([~wrong, wrong], axis=1).astype(np.float32)
    images = np.zeros((len(labels), 16, 16, 3), np.uint8)
    return Predictions(images, labels, shares, np.arange(len(labels)), ["cat", "dog"])


def test_columns_of_a_table_stay_with_their_images(folder, manifest):
    assert manifest.classes == ("cat", "dog")
    for split in manifest.splits:
        found = columns_of(manifest, split)
        assert list(found) == ["width", "height", "camera", "Day"]
        for day, camera, height in zip(found["Day"], found["camera"], found["height"], strict=True):
            assert CAMERAS[int(day) % 3] == camera and int(height) == 16 + int(day) % 5
    other = dataclasses.replace(manifest, seed=5)  # columns of another data set aren't this one's
    assert columns_of(other, "test") == {}
    write_columns(manifest, {"test": {}})
    assert columns_of(load_manifest(folder / "data", "all"), "test")["camera"]


def test_the_worst_part_comes_first(manifest):
    cameras = np.array(columns_of(manifest, "test")["camera"])
    random = np.random.default_rng(1)
    wrong = np.where(cameras == "old", random.random(len(cameras)) < 0.9, random.random(len(cameras)) < 0.1)
    found = slices_by(predictions_of(manifest, wrong), manifest, "test", "camera")
    assert found[0].name == "old" and {one.name for one in found} == {"old", "new", "(empty)"}
    assert sum(one.count for one in found) == len(cameras)
    for one in found:
        part = cameras == one.name.replace("(empty)", "")
        assert one.value == pytest.approx(1 - wrong[part].mean())
        assert 0 <= one.low <= one.value <= one.high <= 1 and one.high - one.low > 0


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_95_of_100_intervals_hold_the_true_share(share):
    random = np.random.default_rng(3)
    held = 0
    for _ in range(2000):
        _, low, high = slices.accuracy_interval(random.random(40) < share)
        held += low <= share <= high
    assert 0.92 < held / 2000 < 0.99


def test_numbers_become_quarters_and_their_errors_are_told(manifest):
    days = np.array(columns_of(manifest, "test")["Day"], float)
    labels = np.zeros((len(days), 1), np.float32)
    given = ((days > 50) * 2.0)[:, None].astype(np.float32)
    predictions = Predictions(
        np.zeros((len(days), 16, 16, 3), np.uint8), labels, given, np.arange(len(days)), ["age"]
    )
    found = slices_by(predictions, manifest, "test", "Day")
    assert len(found) == 4 and [one.count for one in found] == [6] * 4
    assert found[0].name == "53.25 to 59" and found[0].value == 2.0
    assert found[-1].value == 0.0
    numbers = dataclasses.replace(manifest, classes=("age",), target_mean=(0.0,), target_std=(1.0,))
    with pytest.raises(InputError, match="column of --by"):
        slices_by(predictions, numbers, "test", "class")


def test_the_interval_of_few_errors_is_that_of_scipy(manifest):
    errors = np.array([2.0, 4.0, 2.5])
    given = errors[:, None].astype(np.float32)
    found = Predictions(np.zeros((3, 8, 8, 3), np.uint8), given, 0 * given, np.arange(3), ["age"])
    parts = {"all": np.ones(3, bool), "two": np.arange(3) < 2, "one": np.arange(3) < 1}
    every, two, one = slices.slices_of(found, parts)
    interval = stats.ttest_1samp(errors, 0).confidence_interval()
    assert (every.low, every.high) == pytest.approx((interval.low, interval.high), rel=1e-6)
    wide = stats.ttest_1samp(errors[:2], 0).confidence_interval()
    assert wide.low < 0 == two.low and two.high == pytest.approx(wide.high), "no mean error is below 0"
    assert math.isnan(one.low) and math.isnan(one.high)


def test_quarters_of_numbers_that_begin_alike_have_names_of_their_own():
    """Moments in seconds: four digits are the same for all of them."""
    moments = 1_700_000_000 + np.arange(400.0)
    parts = slices.quarters(moments)
    assert [part.sum() for part in parts.values()] == [100] * 4
    assert next(iter(parts)) == "1700000000 to 1700000100"
    assert next(iter(slices.quarters(moments - 1_700_000_000))) == "0 to 99.75"


def test_a_column_comes_before_what_labkit_calls_by_its_name(manifest, monkeypatch):
    named = {"class": ["a", "b"] * 12, "brightness": ["high", "low"] * 12}
    monkeypatch.setattr(slices, "columns_of", lambda manifest, split: named)
    predictions = predictions_of(manifest, np.arange(24) % 2 > 0)
    assert slices.names_of_slices(manifest, "test") == ["class", "brightness"]
    for by, names in (("class", ["b", "a"]), ("brightness", ["low", "high"])):
        found = slices_by(predictions, manifest, "test", by)
        assert [(one.name, one.value) for one in found] == [(names[0], 0.0), (names[1], 1.0)]


def test_too_many_texts_are_no_parts(manifest):
    count = manifest.count("test")
    write_columns(manifest, {"test": {"name": [f"text {row}" for row in range(count)]}})
    with pytest.raises(InputError, match="24 different texts; allowed: 20, or numbers"):
        slices_by(predictions_of(manifest, np.zeros(count, bool)), manifest, "test", "name")


@pytest.mark.slow
def test_the_command_and_python_tell_the_same(folder, tmp_path, capsys):
    prepare(None, tmp_path / "data", images=folder / "all.csv", image_size=16)
    train(
        tmp_path / "run",
        dataset="all",
        data_dir=tmp_path / "data",
        train_steps=2,
        train_batch_size=8,
        eval_batch_size=8,
    )
    capsys.readouterr()
    command = ["evaluate", str(tmp_path / "run")]
    assert cli.main([*command, "--by", "camera"]) == 0
    said = capsys.readouterr().out
    run = labkit.load_run(tmp_path / "run")
    for one in run.slices("camera"):
        assert f"{one.low:.1%} to {one.high:.1%}" in said and one.name in said
    assert {one.name for one in run.slices("class")} <= {"cat", "dog"}
    brightness = run.slices("brightness")
    assert sum(one.count for one in brightness) == len(load_predictions(RunDirectory(tmp_path / "run")))
    shutil.move(tmp_path / "data", tmp_path / "moved")
    assert cli.main([*command, "--by", "camera", "--data-dir", str(tmp_path / "moved")]) == 0
    assert capsys.readouterr().out == said
    for flags in (["--by", "hospital", "--data-dir", str(tmp_path / "moved")], ["--by", "class", "--watch"]):
        assert cli.main([*command, *flags]) == 2
        told = capsys.readouterr()
        assert told.err.count("\n") == 1 and not told.out
