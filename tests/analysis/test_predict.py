"""A run's network asked about files and arrays: what an evaluation says, and a sentence for what is none."""

import csv
import io
import json
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import labkit
from labkit.analysis.predict import PredictedImages
from labkit.analysis.predictions import load_predictions
from labkit.commands import main as cli
from labkit.data.manifest import files_of
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.own_data import write_own
from tests.properties.harness import train


@pytest.fixture(scope="module")
def recorded(smoke):
    """What the evaluation of the run recorded of its test images."""
    return load_predictions(RunDirectory(smoke))


@pytest.fixture(scope="module")
def pictures(recorded, tmp_path_factory):
    """The test images as files, in two folders, and among them what is no picture."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "more").mkdir()
    for place, pixels in enumerate(recorded.images[:80]):
        Image.fromarray(pixels).save(folder / ("more" if place >= 40 else "") / f"{place}.png")
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(b"no picture either")
    return folder


def place_of(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".png"))


def test_files_and_arrays_are_what_the_evaluation_recorded(smoke, recorded, pictures):
    run, step = labkit.load_run(smoke), recorded.summary["checkpoint_step"]
    of_files = run.predict(pictures, checkpoint=step)
    places = [place_of(name) for name in of_files.names]
    assert sorted(places) == list(range(80)) and of_files.step == step
    np.testing.assert_allclose(of_files.probabilities, recorded.probabilities[places], atol=1e-6)
    np.testing.assert_array_equal(of_files.predicted, recorded.predicted[places])
    of_arrays = run.predict(recorded.images[:600], checkpoint=step)  # more than one batch
    np.testing.assert_allclose(of_arrays.probabilities, recorded.probabilities[:600], atol=1e-6)
    grey = recorded.images[:7, ..., 0]  # without channels, as prepare_data takes them
    told = [run.predict(images).probabilities for images in (grey, grey[..., None], grey[3])]
    np.testing.assert_allclose(told[0], run.predict(np.stack([grey] * 3, -1)).probabilities, atol=1e-6)
    np.testing.assert_array_equal(told[0], told[1])
    np.testing.assert_allclose(told[0][3:4], told[2], atol=1e-6)
    one = run.predict(recorded.images[5])
    assert len(one) == 1 and one.classes == tuple(recorded.classes)
    name, share = one.top(0, 1)[0]
    assert name == one.classes[one.predicted[0]] and share == one.probabilities[0].max()


def test_the_data_set_isnt_needed(smoke, pictures, tmp_path, monkeypatch):
    copy = shutil.copytree(smoke, tmp_path / "run")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    before = labkit.load_run(smoke).predict(pictures / "3.png")
    environment = json.loads((copy / "environment.json").read_text())
    environment["data"]["directory"] = "/gone"
    (copy / "environment.json").write_text(json.dumps(environment))
    np.testing.assert_array_equal(
        labkit.load_run(copy).predict(pictures / "3.png").probabilities, before.probabilities
    )


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["crop", pytest.param("letterbox", marks=pytest.mark.long)])
def test_a_picture_is_fitted_as_those_of_the_data_set(tmp_path, resize):
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(12):
            height, width = random.integers(20, 60, 2)
            pixels = random.integers(0, 256, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.png")
    made = prepare(None, tmp_path / "data", images=tmp_path / "pets", image_size=16, resize=resize).manifest
    train(
        tmp_path / "run",
        dataset="pets",
        data_dir=tmp_path / "data",
        train_steps=2,
        train_batch_size=4,
        eval_batch_size=4,
    )
    run = labkit.load_run(tmp_path / "run")
    names = files_of(made, "test")
    found = run.predict([tmp_path / "pets" / name for name in names])
    stored = run.predict(load_split(made, "test")[0])
    np.testing.assert_allclose(found.probabilities, stored.probabilities, atol=1e-6)


@pytest.mark.slow
def test_images_with_several_labels_have_any_number_of_classes(tmp_path):
    made = write_own(tmp_path / "data", "tags", multi_label=True, size=16)
    fields = {"dataset": "tags", "data_dir": tmp_path / "data", "loss": "sigmoid", "train_steps": 2}
    train(tmp_path / "run", **fields, train_batch_size=8, eval_batch_size=8)
    found = labkit.load_run(tmp_path / "run").predict(load_split(made, "test")[0])
    np.testing.assert_array_equal(found.predicted, found.probabilities > 0.5)
    assert found.predicted.shape == (12, 3)


# ---- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((2, 32, 32, 3), np.float32), "float32 [2, 32, 32, 3]; allowed: uint8"),
        (np.zeros(32, np.uint8), "uint8 [32]"),
        (np.zeros((1, 32, 32, 4), np.uint8), "uint8 [1, 32, 32, 4]"),
        (np.zeros((0, 32, 32, 3), np.uint8), "at least one image"),
        (7, "images are 7; allowed"),
        ([], "no pictures were named"),
        ("nowhere.png", "nowhere.png does not exist"),
        ("none-*.png", "no file fits the pattern none-*.png"),
    ],
)
def test_what_is_no_image_is_refused(smoke, images, said):
    with pytest.raises(InputError) as caught:
        labkit.load_run(smoke).predict(images)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_without_pictures_is_refused(smoke, tmp_path):
    with pytest.raises(InputError, match="has no pictures"):
        labkit.load_run(smoke).predict(tmp_path)


def test_a_damaged_file_is_refused_or_left_out_by_name(smoke, pictures, tmp_path):
    shutil.copy(pictures / "1.png", tmp_path / "1.png")
    (tmp_path / "cut.png").write_bytes((pictures / "2.png").read_bytes()[:300])
    (tmp_path / "text.png").write_text("no picture")
    run = labkit.load_run(smoke)
    with pytest.raises(InputError, match=r"(cut|text)\.png can't be used: .*--skip-damaged"):
        run.predict(tmp_path)
    found = run.predict(tmp_path, skip_damaged=True)
    assert [name.rpartition("/")[2] for name in found.names] == ["1.png"]
    assert sorted(name.rpartition("/")[2] for name in found.skipped) == ["cut.png", "text.png"]
    with pytest.raises(InputError, match="none of 2 pictures can be read"):
        run.predict([tmp_path / "cut.png", tmp_path / "text.png"], skip_damaged=True)


# ---- the command ----------------------------------------------------------------------------------------


def labkit_predict(capsys, *arguments: str) -> str:
    assert cli.main(["predict", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.timeout(60)
def test_a_pipe_among_pictures_is_not_waited_for(smoke, pictures, tmp_path):
    shutil.copy(pictures / "1.png", tmp_path)
    os.mkfifo(tmp_path / "2.png")
    run = labkit.load_run(smoke)
    with pytest.raises(InputError, match=r"2.png can't be used: It can't be read \(not a file\)"):
        run.predict(tmp_path)
    assert list(run.predict(tmp_path, skip_damaged=True).skipped) == [str(tmp_path / "2.png")]


def test_json_and_csv_tell_the_same(smoke, recorded, pictures, tmp_path, capsys):
    asked = [str(smoke), str(pictures / "more"), "--checkpoint", str(recorded.summary["checkpoint_step"])]
    lines = [json.loads(line) for line in labkit_predict(capsys, *asked, "--json", "--top", "3").splitlines()]
    assert len(lines) == 40
    for line in lines:
        place = place_of(line["path"])
        best = np.argsort(-recorded.probabilities[place], kind="stable")[:3]
        assert [one["class"] for one in line["top"]] == [recorded.classes[number] for number in best]
        assert line["class"] == line["top"][0]["class"]
        assert line["probability"] == pytest.approx(float(recorded.probabilities[place].max()), abs=1e-6)
    said = labkit_predict(capsys, *asked, "--output", str(tmp_path / "new" / "told.csv"))
    assert "40 pictures" in said
    with open(tmp_path / "new" / "told.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["path"], row["class"]) for row in rows] == [(line["path"], line["class"]) for line in lines]
    assert list(rows[0]) == ["path", "class", "probability"]


def test_a_pattern_and_standard_input(smoke, pictures, capsys, monkeypatch):
    table = labkit_predict(capsys, str(smoke), str(pictures / "1?.png"), "--top", "2")
    assert table.count(".png") == 10 and "class_2" in table
    content = SimpleNamespace(buffer=io.BytesIO((pictures / "1.png").read_bytes()))
    monkeypatch.setattr(sys, "stdin", content)
    piped = labkit_predict(capsys, str(smoke), "-", "--json")
    named = labkit_predict(capsys, str(smoke), str(pictures / "1.png"), "--json")
    assert json.loads(piped) == json.loads(named) | {"path": "-"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--top", "0"], "--top is 0"),
        (["--output", "told.txt"], "ends with .csv"),
        (["--output", "told.csv", "--json"], "give one of the two"),
        (["--checkpoint", "99"], "99"),
    ],
)
def test_flags_that_dont_fit_are_refused(smoke, pictures, tmp_path, monkeypatch, capsys, flags, said):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predict", str(smoke), str(pictures), *flags]) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("targets", ["class", "classes", "numbers"])
def test_a_network_without_numbers_has_no_most_probable_class(targets):
    with pytest.raises(InputError, match="step 7 gives NaN or infinite numbers for 1 of 2 images"):
        PredictedImages(("a", "b"), np.array([[0.5, 0.5], [np.nan, 0.5]]), ("x", "y"), targets, 7)
