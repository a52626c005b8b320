"""Reading predictions: damaged files are refused, mistakes come first, every example is counted once."""

import numpy as np
import pytest

from app.images import cards
from labkit.analysis.predictions import Predictions, load_predictions, signature
from labkit.errors import InputError
from tests.app.conftest import CLASSES, write_predictions


@pytest.fixture
def predictions(make_run) -> Predictions:
    run = make_run()
    write_predictions(run)
    return load_predictions(run)


def test_the_most_confident_mistakes_come_first(predictions):
    order = predictions.select()
    assert sorted(order) == list(range(60))
    wrong = predictions.wrong[order]
    assert not (~wrong[:-1] & wrong[1:]).any(), "no mistake after a right one"
    confidence = predictions.probabilities.max(1)[order]
    assert (np.diff(confidence[wrong]) <= 0).all()
    assert (np.diff(confidence[~wrong]) >= 0).all()


def test_every_example_is_in_one_cell_of_the_confusion_matrix(predictions):
    cells = [
        predictions.select(true, predicted)
        for true in range(len(CLASSES))
        for predicted in range(len(CLASSES))
    ]
    assert sorted(np.concatenate(cells)) == list(range(60))
    assert [len(cell) for cell in cells] == predictions.confusion.ravel().tolist()
    assert len(predictions.select(wrong_only=True)) == predictions.wrong.sum()


def test_class_metrics_agree_with_counting(predictions):
    labels, predicted = predictions.labels, predictions.predicted
    for number, row in enumerate(predictions.per_class()):
        hits = sum(1 for t, p in zip(labels, predicted, strict=True) if t == p == number)
        assert row["class"] == CLASSES[number]
        assert row["examples"] == (labels == number).sum()
        assert row["accuracy"] == pytest.approx(hits / (labels == number).sum())
        assert row["precision"] == pytest.approx(hits / (predicted == number).sum())


def test_a_class_that_is_never_predicted_has_no_precision():
    arrays = (
        np.zeros((1, 2, 2, 3), np.uint8),
        np.array([0]),
        np.array([[1.0, 0.0]], np.float32),
        np.array([0]),
    )
    absent = Predictions(*arrays, classes=["a", "b"]).per_class()[1]
    assert (absent["accuracy"], absent["precision"]) == (None, None)


def test_missing_and_damaged_predictions_raise_different_errors(make_run):
    run = make_run()
    with pytest.raises(FileNotFoundError):
        load_predictions(run)
    write_predictions(run)
    whole = (run.predictions_path / "test.npz").read_bytes()
    for damaged in (b"", b"junk", whole[: len(whole) // 2], whole[:200] + b"\0" * 999 + whole[1199:]):
        (run.predictions_path / "test.npz").write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            load_predictions(run)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.array([0, 1])},
        {"labels": np.full(60, 3)},
        {"labels": np.full(60, -1)},
        {"labels": np.full(60, 0.5)},
        {"images": np.zeros((60, 32, 32, 3), np.float32)},
        {"images": np.zeros((60, 32, 32), np.uint8)},
        {"probabilities": np.zeros((60, 3), np.int64)},
        {"probabilities": np.zeros(60, np.float32)},
        {"images": np.array([object()] * 60)},
    ],
    ids=lambda changes: "-".join(
        f"{name}:{value.dtype}{list(value.shape)}" for name, value in changes.items()
    ),
)
def test_arrays_that_do_not_fit_together_are_refused(make_run, change):
    run = make_run()
    arrays = {**write_predictions(run), **change}
    np.savez_compressed(run.predictions_path / "test.npz", **arrays)
    with pytest.raises(InputError, match="is damaged"):
        load_predictions(run)


@pytest.mark.parametrize("text", [None, "", "[]", '{"examples": 59, "classes": ["x", "y", "z"]}'])
def test_a_summary_of_another_evaluation_is_ignored(make_run, text):
    run = make_run()
    write_predictions(run)
    path = run.predictions_path / "test.json"
    path.unlink() if text is None else path.write_text(text)
    predictions = load_predictions(run)
    assert predictions.summary == {}
    assert predictions.classes == ["class 0", "class 1", "class 2"]


def test_replaced_files_change_the_signature(make_run):
    run = make_run()
    none = signature(run)
    write_predictions(run)
    first = signature(run)
    write_predictions(run, seed=1)
    assert len({none, first, signature(run)}) == 3


def test_a_card_shows_classes_and_probabilities_and_escapes_names(predictions):
    place = int(np.flatnonzero(predictions.labels == 2)[0])
    text = cards.grid(cards.prediction_cards(predictions, [place], top=3))
    assert "<b>star" not in text
    assert "true: &lt;b&gt;star&lt;/b&gt;" in text
    assert f"{predictions.probabilities[place].max():.1%}" in text
    assert text.count("<img") == 1


def test_images_are_shown_unchanged():
    import base64
    import io

    from PIL import Image

    for channels in (1, 3):
        image = np.random.default_rng(0).integers(0, 256, (32, 32, channels)).astype(np.uint8)
        png = base64.b64decode(cards.data_uri(image).partition(",")[2])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))).reshape(image.shape), image)
