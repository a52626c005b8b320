"""The page Predictions: any split and checkpoint, forgetting, filters, two side by side, damaged input."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest

import labkit
from app.predictions.kept import known_evaluation
from labkit.analysis.predictions import load_predictions
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.conftest import (
    CLASSES,
    change_environment,
    rewrite_predictions,
    write_predictions,
    write_several,
)
from tests.app.pages import checked, commands_of, finished, html_of, open_page, press, words

TABS = ("Images", "Calibration and classes", "Parts", "Side by side")


def open_predictions(run, **url):
    return open_page("predictions", run, **url)


@pytest.fixture
def run(make_run):
    """A run with predictions of 60 images."""
    made = make_run()
    write_predictions(made)
    return made


# ---- recorded predictions ------------------------------------------------------------------------------


def test_mistakes_come_first_and_the_pages_of_the_grid_dont_overlap(run):
    predictions = load_predictions(run)
    wrong = int(predictions.wrong.sum())
    at = open_predictions(run)
    assert f"Wrong {wrong}" in words(at)
    first = html_of(at)
    assert first.count('lk-card wrong"') == min(wrong, 24)
    at = open_predictions(run, page="2")
    assert "25–48 of 60" in words(at)
    numbers = [
        {part.split(":")[0] for part in text.split('alt="Test image ')[1:]} for text in (first, html_of(at))
    ]
    assert len(numbers[0]) == len(numbers[1]) == 24
    assert not numbers[0] & numbers[1]


def test_cards_lead_to_the_page_of_the_image(make_run):
    run = make_run("a&b '\"<i>")
    write_predictions(run)
    shown = html_of(open_page("predictions", run.name))
    assert 'href="image?run=a%26b+%27%22%3Ci%3E&amp;split=test&amp;index=' in shown
    assert "<i>" not in shown


def test_predictions_that_are_replaced_while_the_page_is_open_are_read_again(make_run):
    run = make_run()
    at = open_predictions(run)
    assert f"labkit evaluate {run.path}" in words(at)
    for examples in (30, 31):
        write_predictions(run, examples, seed=examples)
        assert f"Test images {examples}" in words(checked(at.run()))
    (run.predictions_path / "test.npz").write_bytes(b"PK\x03\x04 damaged")
    checked(at.run())
    assert "is damaged" in at.error[0].value
    assert f"labkit evaluate {run.path}" in words(at)
    write_predictions(run)
    assert f"labkit evaluate {run.path} --split validation" in words(
        open_predictions(run, split="validation")
    )


EMPTY = {
    "images": np.zeros((0, 32, 32, 3), np.uint8),
    "labels": np.zeros((0, 3), np.int32),
    "probabilities": np.zeros((0, 3), np.float32),
    "index": np.zeros(0, np.int64),
}
ODD = {
    "several": (write_several, {}),
    "several empty": (write_several, EMPTY),
    "empty": (write_predictions, EMPTY | {"labels": np.zeros(0, np.int32)}),
    "nan": (write_predictions, {"probabilities": np.full((60, 3), np.nan, np.float32)}),
    "one class": (
        write_predictions,
        {"probabilities": np.ones((60, 1), np.float32), "labels": np.zeros(60, np.int32)},
    ),
}


def test_no_command_is_shown_that_refuses_a_recorded_run(runs_folder):
    labkit.start_run("mine").finish()
    at = open_predictions(RunDirectory(runs_folder / "mine"))
    assert "run.predictions" in words(at) and not commands_of(at)


@pytest.mark.parametrize("view", TABS)
@pytest.mark.parametrize("kind", ODD)
def test_no_input_breaks_a_tab(make_run, kind, view):
    run, (write, changes) = make_run(), ODD[kind]
    write(run)
    rewrite_predictions(run, **changes)
    assert ("(NaN)" in words(open_predictions(run, view=view, sort="loss"))) == (kind == "nan")


def test_the_metrics_of_several_labels_are_shown(make_run):
    run = make_run()
    write_several(run)
    shown = words(open_predictions(run))
    assert "Micro F1 0.7125" in shown and "Top-5 accuracy" not in shown
    wrong = int(re.search(r"Wrong (\d+)", shown)[1])
    assert f"Exact match {100 * (1 - wrong / 50):.2f} %" in shown
    assert "Labels" in shown and "Confusion" not in shown


def test_filters_and_order_of_the_address_are_applied(run):
    predictions = load_predictions(run)
    at = open_predictions(run, show="Wrong", sort="margin", page="9")
    assert f"of {predictions.wrong.sum()}, the smallest margin first" in words(at)
    assert 'lk-card right"' not in html_of(at)
    at = open_predictions(run, show="Nonsense", sort="x", true="y", confidence="z", loss="-5", page="-1")
    assert "of 60, the most confident mistakes first" in words(at)
    assert "the least confident first" in words(open_predictions(run, show="Right")), (
        "no mistake is among them"
    )
    at = open_predictions(run, confidence=["0.4", "0.6"])
    inside = ((predictions.confidence >= 0.4) & (predictions.confidence <= 0.6)).sum()
    assert f"of {inside}," in words(at)


def test_a_filter_that_another_run_cannot_have_is_dropped_and_can_be_cleared(run, make_run):
    second = make_run("second")
    write_predictions(second)
    rewrite_predictions(second, probabilities=np.full((60, 3), 1 / 3, np.float32))
    summary = json.loads((second.predictions_path / "test.json").read_text()) | {"classes": ["a", "b", "c"]}
    write_json_atomic(second.predictions_path / "test.json", summary)
    at = open_predictions(run)
    losses = load_predictions(run).losses
    at.slider(key="loss").set_value((1.0, at.slider(key="loss").max))
    assert f"of {(losses >= 1).sum()}," in words(checked(at.run()))
    at.selectbox(key="true").set_value(CLASSES[0])
    checked(at.run())
    at.session_state["run"] = str(second.path)
    assert "of 60," in words(checked(at.run()))
    assert at.selectbox(key="true").value == "any class"
    at.session_state["run"] = str(run.path)
    at.slider(key="loss").set_value((1.0, 1.1))
    checked(at.run())
    assert "of 60," in words(press(at, "Clear"))


def test_a_class_may_be_called_any(run):
    summary = run.predictions_path / "test.json"
    write_json_atomic(summary, json.loads(summary.read_text()) | {"classes": ["any", "b", "c"]})
    assert f"of {(load_predictions(run).labels == 0).sum()}," in words(open_predictions(run, true="any"))


def test_two_runs_of_the_same_data_stand_side_by_side(make_run):
    runs = [make_run(name) for name in ("first", "second")]
    for seed, run in enumerate(runs):
        write_predictions(run)
        shares = np.random.default_rng(seed).dirichlet([1, 1, 1], 60).astype(np.float32)
        rewrite_predictions(run, probabilities=shares)
        change_environment(run, data={**run.read_environment()["data"], "checksum": "x"})
    a, b = (load_predictions(run) for run in runs)
    at = open_predictions(runs[0], view=TABS[3], other_run="second")
    assert f"disagreement first ({(a.predicted != b.predicted).sum()} images differ)" in words(at)
    assert "<b>star" not in html_of(at)


def test_parts_are_shown_with_the_worst_first(trained):
    at = open_predictions(trained, view="Parts")
    shares = [[float(cell.rstrip(" %")) for cell in row[2:]] for row in table_of(at)]
    assert [row[0] for row in shares] == sorted(row[0] for row in shares)
    assert all(low <= share <= high for share, low, high in shares)
    at.selectbox(key="parts-by").set_value("brightness")
    rows = table_of(checked(at.run()))
    assert len(rows) == 4 and sum(int(row[1]) for row in rows) == len(load_predictions(trained))


def table_of(at) -> list[list[str]]:
    """Return the cells of the page's table, without its head."""
    [table] = re.findall("<tbody>(.*?)</tbody>", html_of(at))
    return [re.findall("<bdi>(.*?)</bdi>", row) for row in table.split("</tr>")[:-1]]


# ---- evaluations that the page makes -------------------------------------------------------------------


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
    assert "Train images" in words(at) and 'alt="Train image ' in html_of(at)
    next(button for button in at.button if "Compute forgetting" in button.label).click()
    at = finished(checked(at.run()))
    right = np.stack(
        [~known_evaluation(trained_home, "train", step).wrong for step in trained_home.checkpoint_steps()]
    )
    plain = [sum(a and not b for a, b in itertools.pairwise(row)) for row in right.T.tolist()]
    assert f"{sum(map(bool, plain))} image" in words(at)
    assert f"forgotten {max(plain)}×" in html_of(at)


@pytest.mark.slow
def test_a_checkpoint_or_a_data_set_that_goes_away_while_it_is_shown_is_named(trained_home, tmp_path):
    folder, data = trained_home.checkpoints_path / "step-00000002", trained_home.path.parents[1] / "data"
    at = finished(open_predictions(trained_home, checkpoint="step 2", view=TABS[0]))
    shutil.move(folder, tmp_path / "away")
    try:
        assert "isn't kept any more" in words(checked(at.run()))
        assert "lk-card" in html_of(at)
        text = words(open_predictions(trained_home, checkpoint="step 2", split="validation"))
        assert "doesn't keep the checkpoint of step 2" in text and "--keep-checkpoints" in text
    finally:
        shutil.move(tmp_path / "away", folder)
    data.rename(data.with_name("away"))
    try:
        assert "The images can't be read" in words(checked(at.run()))
    finally:
        data.with_name("away").rename(data)
