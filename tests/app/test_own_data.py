"""Runs on somebody's own data set or network: any class name is text, any size and number is drawn."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import labkit
from app.acting.draft import check, data_sets, draft_of, new_draft
from app.images import answers
from app.predictions import matrix
from labkit.analysis.predictions import Predictions, load_predictions
from labkit.data.images.pictures import read_picture
from labkit.data.of_run import data_set_of
from labkit.data.shards import load_split
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.training import evaluate
from tests.app.conftest import train
from tests.app.pages import PAGES, commands_of, finished, html_of, open_page, words
from tests.own_data import write_own
from tests.tiny import prepare_tiny

OWN = Path(__file__).parents[1] / "own_nets.py"
NAMES = ("猫", "<b>dog</b>", "line break", "*stars* `code` $x$", "a/b\\c:red[d]", "n" * 400)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    folder = tmp_path_factory.mktemp("own")
    classes = (*NAMES[:2], "line\nbreak", *NAMES[3:], "\u202eright to left")
    manifest = write_own(folder / "data", "my_pets__1", classes=classes, size=80)
    files = {name: [f"<i>{n}&.png" for n in range(split.count)] for name, split in manifest.splits.items()}
    write_json_atomic(manifest.directory / "files.json", files)
    yield train(folder, "first", dataset="my_pets__1", train_batch_size=12)
    answers.networks().close()


@pytest.fixture
def run(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("LABKIT_HOME", str(trained.path.parents[1]))
    monkeypatch.delenv("LABKIT_RUNS", raising=False)
    return trained


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_any_name_as_text(run, page):
    at = finished(open_page(page, run))
    shown = words(at)
    if page in ("predictions", "image", "data", "image_map"):
        found = [name for name in NAMES if name in shown]
        assert len(found) == len(NAMES) or page != "data", found
        assert "<b>dog" not in html_of(at)
    if page in ("live", "data"):
        assert "my_pets__1" in shown


@pytest.mark.long
@pytest.mark.parametrize(("page", "part"), [("image", ""), ("data", "Samples"), ("data", "Augmentation")])
def test_the_file_of_an_image_is_named(run, page, part):
    at = open_page(page, run, **({"part": part} if part else {}))
    shown = html_of(at if page == "image" else finished(at))
    assert "&lt;i&gt;0&amp;.png" in shown and "<i>" not in shown


@pytest.mark.long
def test_every_part_of_the_data_page_is_drawn_and_names_the_source(run):
    for part in ("Balance and pixels", "Duplicates", "Source"):
        shown = words(finished(open_page("data", run, part=part)))
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


@pytest.mark.long
def test_a_data_set_that_is_gone_leaves_the_command_that_prepares_it(run, tmp_path, monkeypatch):
    moved = run.path.parents[1] / "data" / "my_pets__1"
    moved.rename(tmp_path / "elsewhere")
    try:
        at = open_page("data", run)
    finally:
        (tmp_path / "elsewhere").rename(moved)
    command = commands_of(at)[-1]
    assert "--images '/somewhere/my pictures' --name my_pets__1" in command


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


@pytest.mark.long
def test_a_matrix_of_many_classes_has_those_with_the_most_mistakes():
    whole, part = matrix.confusion(many(60)), matrix.confusion(many(3000))
    assert whole.numbers is None and len(whole.rows) == 60
    assert part.numbers is not None and len(part.rows) == matrix.MOST_MISTAKEN
    cell = part.cell_of((7, 8))
    assert cell is not None and part.counts[cell] >= 40 and part.classes_of(cell) == (7, 8)
    assert part.rows[cell[0]] == "class <7>" and part.wholes[cell[0]] >= 50
    assert part.cell_of((7, -1)) == (cell[0], -1) and part.classes_of((-1, cell[1])) == (-1, 8)
    assert matrix.confusion(dataclasses.replace(many(9), classes=list("abcdefghi"))).counts.sum() == 3000
    left_out = next(number for number in range(3000) if number not in part.numbers)
    assert part.cell_of((left_out, 8)) is None


@pytest.mark.long
def test_images_too_large_for_the_predictions_are_read_from_the_data_set(run, monkeypatch):
    before = load_predictions(run)
    assert isinstance(before.images, np.ndarray)
    monkeypatch.setattr(evaluate, "MOST_IMAGE_BYTES", 1000)
    labkit.evaluate(run.path, split="validation")
    found = load_predictions(run, "validation")
    assert not isinstance(found.images, np.ndarray) and len(found) == 12
    images, _ = load_split(data_set_of(run), "validation")
    np.testing.assert_array_equal(found.images[np.array([3, 1])], images[[3, 1]])
    np.testing.assert_array_equal(found.images[2], images[2])
    assert "data:image/" in html_of(open_page("predictions", run, split="validation"))


@pytest.mark.parametrize("resize", ["crop", "letterbox"])
def test_an_uploaded_picture_becomes_what_preparation_makes_of_it(resize, tmp_path):
    rng, files = np.random.default_rng(0), []
    for number in range(12):
        pixels = rng.integers(0, 256, (5 + number, 9, 3)).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((300, 170 + 20 * number), Image.Resampling.BICUBIC)
        name = f"{number:02d}.{'png' if number % 3 else 'jpg'}"
        files.append(tmp_path / "pictures" / f"class {number % 2}" / name)
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        picture.save(files[-1])
    given = {"images": tmp_path / "pictures", "data_dir": tmp_path / "data", "image_size": 40}
    made = labkit.prepare_data(**given, resize=resize)
    prepared = np.concatenate([load_split(made, split)[0] for split in made.splits])
    assert len(prepared) == 12
    for file in files:
        image = read_picture(file.read_bytes(), made.image_shape, made.source["resize"]).image
        assert (image == prepared).all(axis=(1, 2, 3)).any(), file


# ---- a network of the user's own code ------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_networks(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("own-network")
    prepare_tiny(home / "data")
    for name in ("functional", "subclassed"):
        train(home, name, model=f"{OWN}:{name}", inspect_every_steps=2)
    return home


@pytest.fixture
def own_home(own_networks, monkeypatch) -> Path:
    monkeypatch.setenv("LABKIT_HOME", str(own_networks))
    return own_networks


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", ["live", "layers", "configuration", "predictions", "image", "data"])
@pytest.mark.parametrize("name", ["functional", "subclassed"])
def test_every_page_of_an_own_network_is_there(own_home, name, page):
    at = finished(open_page(page, RunDirectory(own_home / "runs" / name)))
    assert not at.error, words(at)


@pytest.mark.long
@pytest.mark.slow
def test_code_of_somebody_else_is_named_and_not_run(own_home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    foreign = shutil.copytree(own_home / "runs" / "functional", tmp_path / "foreign")
    code = foreign / "code" / "own_nets.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + code.read_text())
    at = finished(open_page("image", RunDirectory(foreign)))
    assert "labkit trust" in words(at) and not (tmp_path / "ran").exists()


@pytest.mark.long
@pytest.mark.slow
def test_the_form_starts_code_only_where_the_server_allows_it(own_home, monkeypatch):
    draft = draft_of(RunDirectory(own_home / "runs" / "functional"))
    assert "LABKIT_ALLOW_CODE=1" in check(draft).errors["model"]
    monkeypatch.setenv("LABKIT_ALLOW_CODE", "1")
    checked = check(draft_of(RunDirectory(own_home / "runs" / "functional")))
    assert not checked.errors and checked.command.count("own_nets.py:functional") == 1
