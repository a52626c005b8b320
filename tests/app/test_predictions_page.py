"""The page Predictions: any split and checkpoint, forgetting, filters, two side by side, damaged input."""

import itertools
import shutil

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.predictions import quality
from app.predictions.kept import known_evaluation
from app.predictions.matrix import confusion, label_errors
from app.predictions.quality import calibration, precision_recall
from labkit.analysis.predictions import load_predictions
from labkit.run_directory import RunDirectory
from tests.app.conftest import CLASSES, write_predictions
from tests.app.test_image import finished
from tests.app.test_pages import cards_of, checked, words
from tests.app.test_several_labels import write_several

TABS = ("Images", "Calibration and classes", "Side by side")


def open_predictions(run: RunDirectory, **url: str) -> AppTest:
    at = AppTest.from_string("from app.views import predictions\npredictions.page()", default_timeout=60)
    at.session_state["run"] = str(run.path)
    for name, value in url.items():
        at.query_params[name] = value
    return checked(at.run())


def rewrite(run: RunDirectory, **changes: np.ndarray) -> None:
    """Replace arrays of the recorded predictions."""
    path = run.predictions_path / "test.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **(arrays | changes))


@pytest.mark.long
@pytest.mark.slow
def test_any_checkpoint_and_split_is_evaluated_and_forgetting_counted(trained_home):
    recorded = load_predictions(trained_home)
    step = recorded.summary["checkpoint_step"]
    at = finished(open_predictions(trained_home, checkpoint=f"step {step}"))
    computed = known_evaluation(trained_home, "test", step)
    np.testing.assert_array_equal(computed.labels[recorded.index], recorded.labels)
    np.testing.assert_allclose(computed.probabilities[recorded.index], recorded.probabilities, atol=1e-5)
    np.testing.assert_allclose(computed.losses[recorded.index], recorded.losses, rtol=1e-3)
    assert f"Test images {len(recorded)}" in words(at)
    assert computed.summary["loss"] == pytest.approx(recorded.summary["loss"], abs=1e-4)
    assert computed.summary["top5_accuracy"] == pytest.approx(recorded.summary["top5_accuracy"])
    image = recorded.images[np.flatnonzero(recorded.index == 3)[0]]
    np.testing.assert_array_equal(computed.images[np.array([3])][0], image)

    at = finished(open_predictions(trained_home, split="train", checkpoint="step 4", sort="forgetting"))
    assert "Train images" in words(at) and 'alt="Train image ' in cards_of(at)
    next(button for button in at.button if "Compute forgetting" in button.label).click()
    at = finished(checked(at.run()))
    right = np.stack(
        [~known_evaluation(trained_home, "train", step).wrong for step in trained_home.checkpoint_steps()]
    )
    plain = [sum(a and not b for a, b in itertools.pairwise(row)) for row in right.T.tolist()]
    assert f"{sum(map(bool, plain))} image" in words(at)
    assert f"forgotten {max(plain)}×" in cards_of(at)


@pytest.mark.slow
def test_a_checkpoint_that_is_deleted_while_shown_stays_and_an_unknown_one_gives_a_sentence(
    trained_home, tmp_path
):
    folder = trained_home.checkpoints_path / "step-00000002"
    at = finished(open_predictions(trained_home, checkpoint="step 2", view=TABS[0]))
    shutil.move(folder, tmp_path / "away")
    try:
        assert "isn't kept any more" in words(checked(at.run()))
        assert "lk-card" in cards_of(at)
        at = open_predictions(trained_home, checkpoint="step 2", split="validation")
        assert "doesn't keep the checkpoint of step 2" in words(at)
    finally:
        shutil.move(tmp_path / "away", folder)
    text = words(open_predictions(trained_home, checkpoint="step 77"))
    assert "doesn't keep the checkpoint of step 77" in text and "--keep-checkpoints" in text


@pytest.mark.slow
def test_images_of_a_data_set_that_is_gone_give_a_sentence(trained_home):
    at = finished(open_predictions(trained_home, checkpoint="step 4"))
    data = trained_home.path.parents[1] / "data"
    data.rename(data.with_name("away"))
    try:
        assert "The images can't be read" in words(checked(at.run())).replace("\\", "")
    finally:
        data.with_name("away").rename(data)


@pytest.mark.parametrize("view", TABS)
@pytest.mark.parametrize("kind", ["several", "several empty", "empty", "nan", "one class", "damaged"])
def test_no_input_breaks_a_tab(make_run, kind, view):
    run = make_run()
    if kind.startswith("several"):
        write_several(run)
    else:
        write_predictions(run, examples=0 if kind == "empty" else 60)
    if kind == "several empty":
        rewrite(
            run,
            images=np.zeros((0, 32, 32, 3), np.uint8),
            labels=np.zeros((0, 3), np.int32),
            probabilities=np.zeros((0, 3), np.float32),
            index=np.zeros(0, np.int64),
        )
    if kind == "nan":
        rewrite(run, probabilities=np.full((60, 3), np.nan, np.float32))
    if kind == "one class":
        rewrite(run, probabilities=np.ones((60, 1), np.float32), labels=np.zeros(60, np.int32))
    if kind == "damaged":
        (run.predictions_path / "test.npz").write_bytes(b"PK\x03\x04 damaged")
    at = open_predictions(run, view=view, sort="loss")
    assert ("(NaN)" in words(at)) == (kind == "nan")
    if kind == "damaged":
        assert "labkit evaluate" in at.code[0].value


def test_other_splits_without_an_evaluation_name_the_command(make_run):
    run = make_run()
    write_predictions(run)
    text = words(open_predictions(run, split="validation"))
    assert f"labkit evaluate {run.path} --split validation" in text


def test_filters_and_order_of_the_address_are_applied(make_run):
    run = make_run()
    write_predictions(run)
    predictions = load_predictions(run)
    at = open_predictions(run, show="Wrong", sort="margin", page="9")
    assert f"of {predictions.wrong.sum()}, the smallest margin first" in words(at)
    assert 'lk-card right"' not in cards_of(at)
    at = open_predictions(run, show="Nonsense", sort="x", true="y", confidence="z", loss="-5", page="-1")
    assert "of 60, the most confident mistakes first" in words(at)
    at = open_predictions(run, confidence=["0.4", "0.6"])
    inside = ((predictions.confidence >= 0.4) & (predictions.confidence <= 0.6)).sum()
    assert f"of {inside}," in words(at)


def test_the_page_of_the_address_is_the_one_of_the_grid(make_run):
    run = make_run()
    write_predictions(run)
    at = open_predictions(run, page="2")
    assert "25–48 of 60" in words(at)


def test_a_range_of_losses_fits_the_next_run_and_is_cleared(make_run):
    first, second = make_run("first"), make_run("second")
    write_predictions(first)
    write_predictions(second)
    rewrite(second, probabilities=np.full((60, 3), 1 / 3, np.float32))
    at = open_predictions(first)
    losses = load_predictions(first).losses
    at.slider(key="loss").set_value((1.0, at.slider(key="loss").max))
    assert f"of {(losses >= 1).sum()}," in words(checked(at.run()))
    at.session_state["run"] = str(second.path)
    assert "of 60," in words(checked(at.run()))
    at.session_state["run"] = str(first.path)
    at.slider(key="loss").set_value((1.0, 1.1))
    checked(at.run())
    next(button for button in at.button if button.label == "Clear").click()
    assert "of 60," in words(checked(at.run()))


def test_two_runs_of_the_same_data_stand_side_by_side(make_run):
    runs = [make_run(name) for name in ("first", "second")]
    for seed, run in enumerate(runs):
        write_predictions(run)
        shares = np.random.default_rng(seed).dirichlet([1, 1, 1], 60).astype(np.float32)
        rewrite(run, probabilities=shares)
        environment = run.environment_path.read_text().replace(
            '"chosen_because"', '"checksum": "x", "chosen_because"'
        )
        run.environment_path.write_text(environment)
    a, b = (load_predictions(run) for run in runs)
    at = open_predictions(runs[0], view=TABS[2], other_run="second")
    assert f"disagreement first ({(a.predicted != b.predicted).sum()} images differ)" in words(at)
    assert "<b>star" not in cards_of(at)


def test_figures_count_every_image_and_escape_names(make_run):
    run = make_run()
    write_predictions(run)
    predictions = load_predictions(run)
    found = calibration(predictions)
    drawn = quality.calibration_figure(found, "confidence", "accuracy")
    assert found.counts.sum() == 60
    assert all(f"<td>{count}</td>" in drawn for count in found.counts)
    curves = quality.precision_recall_figures(precision_recall(predictions), CLASSES)
    assert "<b>star" not in curves and curves.count("<polyline") == 3
    cells = confusion(predictions)
    assert cells.counts.sum() == 60 and cells.counts[cells.good].sum() == (~predictions.wrong).sum()


def test_the_table_of_labels_counts_what_is_missed_and_added(make_run):
    run = make_run()
    write_several(run)
    predictions = load_predictions(run)
    for place, row in enumerate(label_errors(predictions).counts.tolist()):
        has, given = predictions.has[:, place].tolist(), predictions.given[:, place].tolist()
        pairs = list(zip(has, given, strict=True))
        assert row == [pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True))]
