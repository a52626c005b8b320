"""The pages of a run on somebody's own data set: any class name is text, any size and number is drawn."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

import labkit
from app.acting.draft import check, data_sets, new_draft
from app.images import answers, cards
from app.images.pictures import read_picture
from app.predictions import matrix
from labkit.analysis.predictions import Predictions, load_predictions
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.training import evaluate
from tests.app.test_pages import PAGES, checked, open_page, words
from tests.own_data import write_own

PATIENCE = 120
NAMES = ("猫", "<b>dog</b>", "line break", "*stars* `code` $x$", "a/b\\c:red[d]", "n" * 400)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    folder = tmp_path_factory.mktemp("own")
    classes = (*NAMES[:2], "line\nbreak", *NAMES[3:], "\u202eright to left")
    manifest = write_own(folder / "data", "my_pets__1", classes=classes, size=80)
    files = {name: [f"<i>{n}&.png" for n in range(split.count)] for name, split in manifest.splits.items()}
    write_json_atomic(manifest.directory / "files.json", files)
    fields = {"dataset": "my_pets__1", "model": "tutorial_cnn", "train_batch_size": 12, "train_steps": 2}
    labkit.train(**fields, num_gpus=0, data_dir=folder / "data", job_dir=folder / "runs" / "first")
    yield RunDirectory(folder / "runs" / "first")
    answers.networks().close()


@pytest.fixture
def run(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return trained


def settled(at: AppTest) -> AppTest:
    """Run the page again until nothing is waited for."""
    end = time.monotonic() + PATIENCE
    while "hourglass" in words(at):
        assert time.monotonic() < end, words(at)
        time.sleep(0.3)
        checked(at.run())
    return at


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_any_name_as_text(run, page):
    at = settled(open_page(page, run))
    shown = words(at)
    if page in ("predictions", "image", "data", "image_map"):
        found = [name for name in NAMES if name in shown]
        assert len(found) == len(NAMES) or page != "data", found
        assert "<b>dog" not in "".join(element.proto.body for element in at.get("html"))
    if page in ("live", "data"):
        assert "my_pets__1" in shown


@pytest.mark.parametrize(("page", "part"), [("image", ""), ("data", "Samples"), ("data", "Augmentation")])
def test_the_file_of_an_image_is_named(run, page, part):
    at = AppTest.from_string(f"from app.views import {page}\n{page}.page()", default_timeout=PATIENCE)
    at.session_state["run"] = str(run.path)
    if part:
        at.query_params["part"] = part
    settled(checked(at.run()))
    shown = "".join(element.proto.body for element in at.get("html"))
    assert "&lt;i&gt;0&amp;.png" in shown and "<i>" not in shown


@pytest.mark.parametrize("part", ["Balance and pixels", "Duplicates", "Source"])
def test_every_part_of_the_data_page_is_drawn(run, part):
    at = AppTest.from_string("from app.views import data\ndata.page()", default_timeout=PATIENCE)
    at.session_state["run"] = str(run.path)
    at.query_params["part"] = part
    shown = words(settled(checked(at.run())))
    if part == "Source":
        assert "pictures of somebody's own: /somewhere/my pictures" in shown
        assert "Published" not in shown and "80×80" in shown


def test_the_form_offers_what_is_prepared_and_checks_what_is_typed(run):
    draft = new_draft("smoke")
    known, how = data_sets(draft)
    assert "7 classes, 80×80 pixels" in known["my_pets__1"]
    assert "labkit data prepare --images DIR --name NAME" in how
    draft.shown["dataset"] = "my_pets__1"
    assert not check(draft).problem and "--dataset my_pets__1" in check(draft).command
    draft.shown["dataset"] = "my_pet__1"
    assert "did you mean 'my_pets__1'" in check(draft).errors["dataset"]
    draft.shown["dataset"] = "../up"
    assert "allowed: up to 64 letters" in check(draft).errors["dataset"]


def test_a_data_set_that_is_gone_leaves_the_command_that_prepares_it(run, tmp_path, monkeypatch):
    moved = run.path.parents[1] / "data" / "my_pets__1"
    moved.rename(tmp_path / "elsewhere")
    try:
        at = open_page("data", run)
    finally:
        (tmp_path / "elsewhere").rename(moved)
    [command] = [element.value for element in at.get("code")]
    assert "--images '/somewhere/my pictures' --name my_pets__1" in command


def test_large_images_are_drawn_smoothly_and_small_ones_as_squares():
    rng = np.random.default_rng(0)
    for side, kind, smooth in ((48, "png", False), (224, "jpeg", True)):
        tag = cards.image_tag(rng.integers(0, 256, (side, side, 3)).astype(np.uint8), "<an> image")
        assert f"data:image/{kind}" in tag and ("image-rendering:auto" in tag) == smooth
        assert "&lt;an&gt; image" in tag


def many(classes: int, examples: int = 3000) -> Predictions:
    """Return predictions of many classes, a third of them wrong, most mistakes between classes 7 and 8."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, examples)
    labels[:50] = 7
    predicted = np.where(rng.random(examples) < 0.33, rng.integers(0, classes, examples), labels)
    predicted[:40] = 8
    probabilities = np.full((examples, classes), 0.1 / classes, np.float32)
    probabilities[np.arange(examples), predicted] += 0.9
    images = np.zeros((examples, 8, 8, 3), np.uint8)
    names = [f"class <{number}>" for number in range(classes)]
    return Predictions(images, labels, probabilities, np.arange(examples), names)


def test_a_matrix_of_many_classes_has_those_with_the_most_mistakes():
    whole, part = matrix.confusion(many(60)), matrix.confusion(many(3000))
    assert whole.numbers is None and len(whole.rows) == 60
    assert part.numbers is not None and len(part.rows) == matrix.MOST_MISTAKEN
    cell = part.cell_of((7, 8))
    assert cell is not None and part.counts[cell] >= 40 and part.classes_of(cell) == (7, 8)
    assert part.rows[cell[0]] == "class <7>" and part.wholes[cell[0]] >= 50
    assert part.cell_of((7, -1)) == (cell[0], -1) and part.classes_of((-1, cell[1])) == (-1, 8)
    left_out = next(number for number in range(3000) if number not in part.numbers)
    assert part.cell_of((left_out, 8)) is None


def test_images_too_large_for_the_predictions_are_read_from_the_data_set(run, monkeypatch):
    before = load_predictions(run)
    assert isinstance(before.images, np.ndarray)
    monkeypatch.setattr(evaluate, "MOST_IMAGE_BYTES", 1000)
    labkit.evaluate(run.path, split="validation")
    found = load_predictions(run, "validation")
    assert not isinstance(found.images, np.ndarray) and len(found) == 12
    manifest = labkit.load_run(run.path).config.data
    images, _ = load_split(_manifest(Path(manifest.data_dir), manifest.dataset), "validation")
    np.testing.assert_array_equal(found.images[np.array([3, 1])], images[[3, 1]])
    np.testing.assert_array_equal(found.images[2], images[2])
    at = AppTest.from_string(
        "from app.views import predictions\npredictions.page()", default_timeout=PATIENCE
    )
    at.session_state["run"], at.query_params["split"] = str(run.path), "validation"
    assert "data:image/" in "".join(element.proto.body for element in checked(at.run()).get("html"))


def _manifest(folder: Path, name: str):
    from labkit.data.manifest import load_manifest

    return load_manifest(folder, name)


@pytest.mark.parametrize("resize", ["crop", "letterbox"])
def test_an_uploaded_picture_becomes_what_preparation_makes_of_it(resize, tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for number in range(12):
        pixels = rng.integers(0, 256, (5 + number, 9, 3)).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((300, 170 + 20 * number), Image.Resampling.BICUBIC)
        files.append(
            tmp_path / "pictures" / f"class {number % 2}" / f"{number:02d}.{'png' if number % 3 else 'jpg'}"
        )
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        picture.save(files[-1])
    made = labkit.prepare_data(
        images=tmp_path / "pictures", data_dir=tmp_path / "data", image_size=40, resize=resize
    )
    prepared = np.concatenate([load_split(made, split)[0] for split in made.splits])
    assert len(prepared) == 12
    for file in files:
        image = read_picture(file.read_bytes(), made.image_shape, made.source["resize"]).image
        assert (image == prepared).all(axis=(1, 2, 3)).any(), file


def test_matrices_and_bars_take_two_classes_and_a_thousand():
    for classes in (2, 1000):
        predictions = dataclasses.replace(
            many(max(classes, 9)), classes=[str(n) for n in range(max(classes, 9))]
        )
        assert matrix.confusion(predictions).counts.sum() > 0
        shares = np.full(classes, 1 / classes)
        has = np.arange(classes) == 0
        assert cards.bars([str(number) for number in range(classes)], shares, has, has, 10)
