"""Predictions with several labels per image: metrics, plots, cards and the page."""

import re

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.images import cards
from labkit import figures as plots
from labkit.analysis.predictions import Predictions, load_predictions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.conftest import CLASSES
from tests.app.test_pages import words

EXAMPLES = 50


def write_several(run: RunDirectory, **changes: np.ndarray) -> None:
    """Write predictions as an evaluation with several labels does."""
    generator = np.random.default_rng(0)
    labels = (generator.random((EXAMPLES, 3)) < 0.4).astype(np.int32)
    # Half of the images have a wrong label.
    flipped = (generator.random((EXAMPLES, 3)) < 0.2) ^ (labels == 1)
    shares = np.where(flipped, 0.5, 0) + 0.5 * generator.random((EXAMPLES, 3))
    arrays = {
        "images": generator.integers(0, 256, (EXAMPLES, 32, 32, 3)).astype(np.uint8),
        "labels": labels,
        "probabilities": shares.astype(np.float32),
        "index": np.arange(EXAMPLES),
    }
    run.predictions_path.mkdir(exist_ok=True)
    np.savez(run.predictions_path / "test.npz", **(arrays | changes))
    summary = {"split": "test", "examples": EXAMPLES, "classes": CLASSES, "checkpoint_step": 120}
    figures = {"loss": 0.4, "accuracy": 0.5, "binary_accuracy": 0.8, "f1_micro": 0.7125, "f1_macro": 0.7}
    write_json_atomic(run.predictions_path / "test.json", summary | figures | {"confusion": None})


@pytest.fixture
def run(make_run) -> RunDirectory:
    made = make_run()
    write_several(made)
    return made


@pytest.fixture
def predictions(run) -> Predictions:
    return load_predictions(run)


def test_an_image_with_one_wrong_label_is_wrong(predictions):
    sets = [
        (set(np.flatnonzero(row)), set(np.flatnonzero(shares > 0.5)))
        for row, shares in zip(predictions.labels, predictions.probabilities, strict=True)
    ]
    assert predictions.wrong.tolist() == [true != given for true, given in sets]
    assert 0 < predictions.wrong.sum() < EXAMPLES
    assert set(predictions.select(true=1)) == {n for n, (true, _) in enumerate(sets) if 1 in true}
    assert set(predictions.select(predicted=2, wrong_only=True)) == {
        n for n, (true, given) in enumerate(sets) if 2 in given and true != given
    }
    assert predictions.confusion is None
    for place, row in enumerate(predictions.per_class()):
        hits = sum(place in true and place in given for true, given in sets)
        assert row["examples"] == sum(place in true for true, _ in sets)
        assert row["recall"] == pytest.approx(hits / row["examples"])
        assert row["precision"] == pytest.approx(hits / sum(place in given for _, given in sets))


def test_examples_are_sorted_by_their_largest_error(predictions):
    order = predictions.select()
    assert sorted(order) == list(range(EXAMPLES))
    wrong = predictions.wrong[order]
    assert not (~wrong[:-1] & wrong[1:]).any(), "no mistake after a right one"
    off = np.abs(predictions.probabilities - predictions.labels).max(axis=1)[order]
    assert (np.diff(off[wrong]) <= 0).all() and (np.diff(off[~wrong]) <= 0).all()


@pytest.mark.parametrize(
    "labels",
    [
        np.full((EXAMPLES, 3), 2),
        np.full((EXAMPLES, 3), -1),
        np.zeros((EXAMPLES, 2), int),
        np.zeros((3, 3), int),
    ],
    ids=["two", "negative", "too few", "too short"],
)
def test_labels_other_than_zeros_and_ones_are_refused(make_run, labels):
    run = make_run()
    write_several(run, labels=labels)
    with pytest.raises(InputError, match="is damaged"):
        load_predictions(run)


def test_a_card_names_all_labels_or_none(predictions):
    several = int(np.flatnonzero(predictions.labels.sum(axis=1) == 2)[0])
    nothing = int(np.flatnonzero(predictions.labels.sum(axis=1) == 0)[0])
    text = cards.grid(cards.prediction_cards(predictions, [several, nothing], top=1))
    assert "true: none" in text
    assert (
        f"true: {predictions.names(predictions.has[several])}".replace(
            "<b>star</b>", "&lt;b&gt;star&lt;/b&gt;"
        )
        in text
    )
    # The most probable label, and all that are true or predicted.
    relevant = (predictions.has | predictions.given)[[several, nothing]]
    best = predictions.probabilities[[several, nothing]].argmax(axis=1)
    relevant[[0, 1], best] = True
    assert text.count('class="lk-bar"') == relevant.sum()


def test_the_notebooks_plots_are_drawn(predictions):
    grid = plots.wrong_predictions(predictions, 8)
    assert "→" in grid.axes[0].get_title(loc="center")
    assert plots.class_accuracy(predictions).axes[0].get_title(loc="left") == "Recall of each label"
    (text,) = plots.confusion_matrix(predictions.confusion, predictions.classes).texts
    assert "several labels" in text.get_text()


def test_the_page_shows_the_metrics_of_several_labels(run):
    at = AppTest.from_string("from app.views import predictions\npredictions.page()", default_timeout=30)
    at.session_state["run"] = str(run.path)
    at.run()
    assert not at.exception, at.exception[0].message
    shown = words(at)
    assert "Micro F1 0.7125" in shown and "Top-5 accuracy" not in shown
    wrong = int(re.search(r"Wrong (\d+)", shown)[1])
    assert f"Exact match {1 - wrong / EXAMPLES:.2%}" in shown
    assert "Labels" in shown and "Confusion" not in shown
