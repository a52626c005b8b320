"""Pages of a run whose labels are numbers: what they show, and what they say where they need classes."""

import json
import re
import shutil

import numpy as np
import pytest

from app.report.document import report
from labkit.analysis.predictions import load_predictions
from labkit.run_directory import RunDirectory, write_json_atomic
from tests.app.pages import PAGES, finished, html_of, open_main, open_page, words
from tests.multilabel import TEST, prepare_small
from tests.properties.harness import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    prepare_small(folder / "data", "shapes_size")
    train(
        folder / "runs" / "sizes",
        dataset="shapes_size",
        data_dir=folder / "data",
        loss="mse",
        train_steps=4,
        checkpoint_every_steps=2,
        validate_every_steps=2,
    )
    return RunDirectory(folder / "runs" / "sizes")


@pytest.fixture(autouse=True)
def home(run, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(run.path.parents[1]))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens(run, page):
    open_page(page, run)


def test_the_largest_errors_come_first(run):
    predictions = load_predictions(run)
    errors = predictions.errors[:, 0]
    at = open_page("predictions", run)
    assert f"Test images {TEST}" in words(at) and f"Mean absolute error {errors.mean():.4g}" in words(at)
    shown = [float(text) for text in re.findall(r"off by ([\d.]+)", html_of(at))]
    assert shown == pytest.approx(np.sort(errors)[::-1][: len(shown)], rel=1e-3) and len(shown) == 24
    place = int(errors.argmax())
    assert f"radius {predictions.probabilities[place, 0]:.4g}" in html_of(at)
    assert f"true: {predictions.labels[place, 0]:.4g}" in html_of(at)


def test_a_report_says_that_its_errors_are_of_another_checkpoint(run, tmp_path):
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    assert "test result of" not in report([copy])
    summary = copy.predictions_path / "test.json"
    write_json_atomic(summary, json.loads(summary.read_text()) | {"checkpoint_step": 2})
    text = report([copy])
    assert "These test predictions are of step 2, and the test result of copy is that of step 4" in text
    assert "The largest errors on the test split" in text and 'loading="lazy"' not in text


def test_another_checkpoint_is_asked(run):
    at = finished(open_page("predictions", run, checkpoint="2"))
    assert "Mean absolute error" in words(at)


def test_predictions_of_another_checkpoint_than_the_test_results_are_named(run, tmp_path, monkeypatch):
    assert "these test predictions are of step" not in words(open_page("predictions", run)).lower()
    other = RunDirectory(shutil.copytree(run.path, tmp_path / "runs" / "other"))
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    summary = other.predictions_path / "test.json"
    write_json_atomic(summary, json.loads(summary.read_text()) | {"checkpoint_step": 3})
    assert "These test predictions are of step 3" in words(open_page("predictions", other))


def test_an_image_has_the_predicted_and_the_true_number(run):
    predictions = load_predictions(run)
    at = finished(open_page("image", run, split="test", index="3"))
    true, given = predictions.labels[3, 0], predictions.probabilities[3, 0]
    assert f"Predicted: radius {given:.4g} · true: radius {true:.4g}" in words(at)
    assert "Still radius" in words(at)


def test_the_data_page_counts_intervals(run):
    at = finished(open_page("data", run, part="Balance and pixels"))
    assert "8.0" in html_of(at) and html_of(at).count(" – ") >= 10
    assert "Suspected labels are found for classes" in words(open_page("data", run, part="Suspected labels"))


def test_the_report_begins_with_the_error(run):
    error = load_predictions(run).errors.mean()
    head = re.sub("<[^>]+>", " ", report([run]).partition("Charts")[0])
    assert re.search(rf"Mean absolute error\s+{error:.4g}\s", head) and "Test accuracy" not in head


def test_the_error_is_in_the_table_and_on_the_live_page(run):
    at = open_page("live", run)
    assert "Validation mean absolute error" in words(at) and "Test mean absolute error" in words(at)
    open_main("runs")
