"""Export and check a run that was trained on two replicas."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from PIL import Image

from labkit.commands import main as cli
from labkit.data.images.pictures import read_picture
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.export import api, write
from labkit.export.output import FORMATS
from tests.docs.blocks import blocks
from tests.properties.harness import metrics, train

STEPS = 6
FIELDS = {
    "train_steps": STEPS,
    "num_gpus": 2,
    "simulate_missing_gpus": True,
    "variable_strategy": "GPU",  # a copy of the weights on each replica
    "checkpoint_every_steps": 3,
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory, shapes):
    job_dir = tmp_path_factory.mktemp("exported") / "two_replicas"
    train(job_dir, **FIELDS)
    return job_dir


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_the_command_writes_a_checked_file_and_its_description(run, here, shapes, capsys):
    assert cli.main(["export", str(run), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "same prediction for 100.00%" in shown
    assert "images float32 [batch, 32, 32, 3] (pixels from 0 to 255) to logits float32 [batch, 10]" in shown
    assert sorted(os.listdir(here)) == ["two_replicas.keras", "two_replicas.keras.json"]
    described = json.loads((here / "two_replicas.keras.json").read_text())
    test = metrics(run).split("test")[-1]
    assert described["classes"] == list(shapes.classes)
    assert described["run"] | {"step": STEPS, "seed": 0, "replicas": 2} == described["run"]
    assert described["run"]["test_accuracy"] == test["accuracy"]
    assert described["data"] == {"dataset": "shapes", "checksum": shapes.checksum}
    check = described["check"]
    assert check["passed"] and check["examples"] == shapes.count("test")
    assert 0 < check["max_difference"] < 1e-5 * check["scale"]
    assert check["accuracy_exported"] == check["accuracy_run"] == pytest.approx(test["accuracy"], abs=2e-3)
    # The file, loaded in this process, has the run's accuracy on the pixels.
    images, labels = load_split(shapes, "test")
    logits = keras.saving.load_model(here / "two_replicas.keras").predict(images, verbose=0)
    assert (logits.argmax(axis=1) == labels).mean() == pytest.approx(test["accuracy"], abs=2e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "resize", "height"),
    [
        ("JPEG", None, 50),
        ("JPEG", "letterbox", 50),
        ("JPEG", "letterbox", 47),
        ("RGBA", None, 51),
        ("I;16", "crop", 51),
    ],
)
def test_the_sample_of_the_docs_predicts_a_picture_without_labkit(kind, resize, height, run, here, shapes):
    api.export(str(run), output="first.keras", probabilities=True)
    about = json.loads((here / "first.keras.json").read_text())
    if resize is not None:  # as if the run's data set had been prepared of pictures
        source = {**shapes.source, "resize": resize}
        about["input"]["resize"] = write._resizing(dataclasses.replace(shapes, source=source))
        (here / "first.keras.json").write_text(json.dumps(about))
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
    picture = Image.fromarray(noise).resize((90, height), Image.Resampling.BICUBIC)
    if kind == "JPEG":
        picture.save("picture.jpg", quality=95)
    elif kind == "RGBA":
        picture.putalpha(picture.convert("L"))
        picture.save("picture.jpg", "PNG")
    else:
        Image.fromarray(np.asarray(picture.convert("L"), np.uint16) * 16).save("picture.jpg", "PNG")
    [sample] = [block for block in blocks("python") if block.document == "docs/models.md"]
    checked = f"{sample.text}\nimport sys\nassert 'labkit' not in sys.modules\nnp.save('seen.npy', images)\n"
    done = subprocess.run(
        [sys.executable, "-c", checked], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = re.fullmatch(r"(.+): (\d+\.\d)%\n", done.stdout)
    assert shown is not None and shown[1] in about["classes"]
    # The picture is the one that labkit itself would show to the network, up to rounding.
    expected = read_picture((here / "picture.jpg").read_bytes(), (32, 32, 3), resize).image
    assert np.abs(np.load("seen.npy")[0] - expected).max() <= 2
    assert "put it on white where it is transparent" in about["input"]["pictures"]


@pytest.mark.long
def test_each_checkpoint_has_its_own_weights(run, here):
    kernels = []
    for checkpoint in ("3", "last"):
        result = api.export(str(run), checkpoint=checkpoint, output=f"{checkpoint}.keras")
        kernels.append(keras.saving.load_model(result.path).get_layer("logits").kernel.numpy())
        assert result.description["run"]["step"] == result.step
    assert result.step == STEPS
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-6
    with pytest.raises(InputError, match="--checkpoint is '5'; allowed: .* steps 3, 6"):
        api.export(str(run), checkpoint="5")


def write_other_weights(model, output, path) -> None:
    """Write a network with a slightly different bias of the first class."""
    bias = model.get_layer("logits").bias
    bias.assign(bias + 1e-3 * np.eye(bias.shape[0])[0])
    model.save(path)


def write_half(model, output, path) -> None:
    path.write_text("the first half")
    raise OSError(28, "No space left on device", str(path))


@pytest.mark.long
def test_a_file_that_fails_its_check_is_not_written(run, here, monkeypatch, capsys):
    writer = dataclasses.replace(FORMATS["keras"], write=write_other_weights)
    monkeypatch.setitem(FORMATS, "keras", writer)
    options = ["--check", "--probabilities", "--standardized-input", "--output", "a.keras"]
    assert cli.main(["export", str(run), *options]) == 1
    shown = capsys.readouterr().out
    # A change of the logit changes its probability p by at most p (1 - p) times as much.
    assert 1e-6 < float(re.search(r"probabilities: largest difference (\S+),", shown)[1]) < 2.6e-4
    assert "nothing was written" in shown
    assert os.listdir(here) == []


def test_a_failed_write_leaves_the_older_export(smoke, here, monkeypatch, capsys):
    before = (here / "a.keras", here / "a.keras.json")
    for path in before:
        path.write_text("older")
    monkeypatch.setitem(FORMATS, "keras", dataclasses.replace(FORMATS["keras"], write=write_half))
    assert cli.main(["export", str(smoke), "--output", "a.keras", "--overwrite"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(os.listdir(here)) == ["a.keras", "a.keras.json"]
    assert [path.read_text() for path in before] == ["older", "older"]


@pytest.mark.long
def test_another_data_set_than_the_runs_is_refused(run, here, tmp_path_factory):
    from labkit.data.prepare import prepare

    other = tmp_path_factory.mktemp("other")
    prepare("shapes", other, validation_size=500)
    with pytest.raises(InputError, match="was trained on other data"):
        api.export(str(run), data_dir=str(other))
    assert os.listdir(here) == []


@pytest.mark.long
def test_only_a_check_needs_images(run, here, shapes, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_HOME", str(here / "empty"))
    copy = here / "copy"
    shutil.copytree(run, copy)
    environment = json.loads((copy / "environment.json").read_text())
    environment["data"]["directory"] = str(here / "gone" / "shapes")
    (copy / "environment.json").write_text(json.dumps(environment))
    assert cli.main(["export", str(copy), "--check", "--output", "a.keras"]) == 2
    assert "no prepared 'shapes' data set" in capsys.readouterr().err
    assert cli.main(["export", str(copy), "--output", "a.keras"]) == 0
    assert "aren't here; the export takes what it recorded of them" in capsys.readouterr().out
    assert (
        cli.main(["export", str(run), "--data-dir", str(shapes.directory.parent), "--output", "b.keras"]) == 0
    )
    made = [json.loads((here / f"{name}.keras.json").read_text()) for name in "ab"]
    made[0]["file"], made[0]["run"]["name"] = made[1]["file"], made[1]["run"]["name"]
    assert made[0] == made[1]
    images = load_split(shapes, "test")[0][:20].astype(np.float32)
    outputs = [keras.saving.load_model(here / f"{name}.keras").predict(images, verbose=0) for name in "ab"]
    np.testing.assert_array_equal(*outputs)
