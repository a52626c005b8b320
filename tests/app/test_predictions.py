"""Predictions: damaged files are refused; orders, filters and figures equal counting and scikit-learn."""

import base64
import dataclasses
import functools
import html
import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, log_loss, precision_recall_curve

from app.images import cards
from app.predictions.filters import Filters, chosen
from app.predictions.matrix import confusion, label_errors
from app.predictions.pairs import OUTCOMES, paired
from app.predictions.quality import BINS, calibration, calibration_charts, precision_recall
from labkit import figures as plots
from labkit.analysis.predictions import Predictions, forgetting_events, load_predictions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.app.conftest import rewrite_predictions, write_predictions, write_several
from tests.fuzzing import damaged_bytes, value_or_line

EXAMPLES = 200


def made(seed: int = 0, several: bool = False, classes: int = 4, examples: int = EXAMPLES) -> Predictions:
    generator = np.random.default_rng(seed)
    truth = np.random.default_rng(1)
    logits = generator.normal(size=(examples, classes)) * 2
    if several:
        labels = truth.integers(0, 2, (examples, classes))
        shares = 1 / (1 + np.exp(-logits - labels))
    else:
        labels = truth.integers(0, classes, examples)
        logits[np.arange(examples), labels] += 1
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = [f"class {number}" for number in range(classes)]
    images = np.zeros((examples, 2, 2, 3), np.uint8)
    return Predictions(images, labels, shares.astype(np.float32), np.arange(examples), names)


def classes_of(predictions: Predictions) -> list[tuple[set, set]]:
    """Return the true and the predicted classes of each example."""
    return [
        (set(np.flatnonzero(has)), set(np.flatnonzero(given)))
        for has, given in zip(predictions.has, predictions.given, strict=True)
    ]


@pytest.mark.parametrize("several", [False, True])
def test_filters_keep_what_plain_counting_keeps(several):
    predictions = made(several=several)
    every = classes_of(predictions)

    def kept(**filters):
        return set(chosen(predictions, Filters(**filters)))

    def where(test):
        return {place for place, (has, given) in enumerate(every) if test(has, given)}

    assert kept() == set(range(EXAMPLES))
    assert kept(true=1, predicted=2) == where(lambda has, given: 1 in has and 2 in given) != set()
    assert kept(missed=1) == where(lambda has, given: 1 in has - given) != set()
    assert kept(added=1, right=False) == where(lambda has, given: 1 in given - has) != set()
    assert kept(right=True) == where(lambda has, given: has == given)
    low, high = 0.3, 0.8
    confidence = predictions.confidence
    assert kept(confidence=(low, high)) == {n for n in range(EXAMPLES) if low <= confidence[n] <= high}
    assert kept(loss=(1, 2)) == {n for n in range(EXAMPLES) if 1 <= predictions.losses[n] <= 2}


@pytest.mark.parametrize("several", [False, True])
def test_orders_put_first_what_they_are_named_after(several):
    predictions = made(several=several)
    shares, labels, every = predictions.probabilities.astype(float), predictions.labels, range(EXAMPLES)
    if several:
        margin = np.abs(2 * shares - 1).min(axis=1)
        losses = -(labels * np.log(shares) + (1 - labels) * np.log(1 - shares)).sum(axis=1)
        off = np.abs(shares - labels).max(axis=1)
    else:
        margin = np.diff(np.sort(shares, axis=1)[:, -2:]).ravel()
        pairs = zip(labels, shares, strict=True)
        losses = [log_loss([label], [share / share.sum()], labels=range(4)) for label, share in pairs]
        off = np.where(predictions.wrong, shares.max(axis=1), -shares.max(axis=1))
    np.testing.assert_allclose(predictions.margin, margin, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(predictions.losses, losses, rtol=1e-4)
    assert (np.diff(predictions.margin[chosen(predictions, order="margin")]) >= 0).all()
    assert (np.diff(predictions.losses[chosen(predictions, order="loss")]) <= 0).all()
    order = predictions.select()
    wrong = predictions.wrong[order]
    assert sorted(order) == list(every) and not (~wrong[:-1] & wrong[1:]).any(), "mistakes come first"
    assert (np.diff(off[order][wrong]) <= 0).all() and (np.diff(off[order][~wrong]) <= 0).all()
    right = np.random.default_rng(2).random((6, EXAMPLES)) < 0.5
    forgotten = forgetting_events(right)
    plain = [sum(a and not b for a, b in itertools.pairwise(row)) for row in right.T.tolist()]
    assert forgotten.tolist() == plain
    order = chosen(predictions, order="forgetting", forgotten=forgotten)
    assert (np.diff(forgotten[order]) <= 0).all() and sorted(order) == list(every)
    assert chosen(predictions, order="forgetting").tolist() == chosen(predictions).tolist()


@pytest.mark.parametrize("several", [False, True])
def test_every_class_and_every_cell_is_counted(several):
    predictions = made(several=several)
    pairs = classes_of(predictions)
    assert predictions.wrong.tolist() == [has != given for has, given in pairs]
    assert len(predictions.select(wrong_only=True)) == predictions.wrong.sum() > 0
    for number, row in enumerate(predictions.per_class()):
        has, given = ([number in pair[side] for pair in pairs] for side in (0, 1))
        hits = sum(map(all, zip(has, given, strict=True)))
        assert (row["class"], row["examples"]) == (f"class {number}", sum(has))
        assert row["recall" if several else "accuracy"] == pytest.approx(hits / sum(has))
        assert row["precision"] == pytest.approx(hits / sum(given))
        if several:
            assert label_errors(predictions).counts[number].tolist() == [
                hits,
                sum(has) - hits,
                sum(given) - hits,
            ]
    if several:
        assert predictions.confusion is None
        return
    cells = [predictions.select(true, taken) for true in range(4) for taken in range(4)]
    assert sorted(np.concatenate(cells)) == list(range(EXAMPLES))
    assert [len(cell) for cell in cells] == predictions.confusion.ravel().tolist()
    shown = confusion(predictions)
    assert shown.counts.sum() == EXAMPLES and shown.counts[shown.good].sum() == (~predictions.wrong).sum()


def test_a_class_that_is_never_predicted_has_no_precision():
    one = np.zeros((1, 2, 2, 3), np.uint8), np.array([0]), np.array([[1.0, 0.0]], np.float32), np.array([0])
    absent = Predictions(*one, classes=["a", "b"]).per_class()[1]
    assert (absent["accuracy"], absent["precision"]) == (None, None)


def test_calibration_also_of_each_label_agrees_with_scikit_learn_and_its_error_with_the_definition():
    predictions = made()
    found = calibration(predictions)
    confidence, right = predictions.confidence.astype(float), ~predictions.wrong
    frequency, mean = calibration_curve(right, confidence, n_bins=BINS)
    there = found.counts > 0
    np.testing.assert_allclose(found.frequency[there], frequency)
    np.testing.assert_allclose(found.confidence[there], mean)
    error = 0.0
    for low in range(BINS):
        inside = (confidence > low / BINS) & (confidence <= (low + 1) / BINS)
        assert found.counts[low] == inside.sum()
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert found.error == pytest.approx(error)
    several = made(several=True)
    one = calibration(several, 2)
    frequency, _ = calibration_curve(several.labels[:, 2], several.probabilities[:, 2], n_bins=BINS)
    np.testing.assert_allclose(one.frequency[one.counts > 0], frequency)
    assert calibration(several).counts.sum() == EXAMPLES * 4
    (bars,) = calibration_charts(found, "accuracy")[1].lines
    assert bars.style == "bars" and bars.y.tolist() == found.counts.tolist()
    assert np.allclose(bars.x, np.linspace(0.5 / BINS, 1 - 0.5 / BINS, BINS))


@pytest.mark.parametrize("several", [False, True])
def test_precision_and_recall_are_those_of_scikit_learn(several):
    exact = made(several=several)  # rounded, so that images share probabilities
    predictions = dataclasses.replace(exact, probabilities=exact.probabilities.round(2))
    for number, curve in enumerate(precision_recall(predictions)):
        has = predictions.has[:, number]
        shares = predictions.probabilities[:, number]
        assert len(np.unique(shares)) < len(shares)
        precision, recall, _ = precision_recall_curve(has, shares)
        np.testing.assert_allclose(curve.precision, precision)
        np.testing.assert_allclose(curve.recall, recall)
        assert curve.average == pytest.approx(average_precision_score(has, shares))
        assert curve.examples == has.sum()


def test_nan_a_single_class_and_no_images_break_nothing():
    broken = made()
    broken.probabilities[:5] = np.nan
    broken = dataclasses.replace(broken)
    assert broken.undefined.sum() == 5
    assert calibration(broken).left_out == 5
    assert set(chosen(broken, order="loss")[:5]) == set(range(5))
    assert not set(chosen(broken, Filters(confidence=(0.0, 0.99)))) & set(range(5))
    assert all(0 <= curve.average <= 1 for curve in precision_recall(broken))
    assert len(paired(broken, made(3)).order()) == EXAMPLES
    for several in (False, True):
        empty, one = made(several=several, examples=0), made(several=several, classes=1)
        for predictions in (broken, one, empty):
            for order in ("confidence", "margin", "loss"):
                assert sorted(chosen(predictions, order=order)) == list(range(len(predictions.labels)))
        assert len(precision_recall(one)) == 1
        assert len(chosen(empty, Filters(right=False, loss=(0, 1)), "margin")) == 0
        assert np.isnan(calibration(empty).error)
        assert np.isnan([curve.average for curve in precision_recall(empty)]).all()


@pytest.mark.parametrize("several", [False, True])
def test_pairs_count_every_common_image_once_and_put_disagreement_first(several):
    a, whole = made(0, several), made(5, several)
    kept = np.random.default_rng(0).permutation(EXAMPLES)[:150]
    b = Predictions(whole.images[kept], whole.labels[kept], whole.probabilities[kept], kept, whole.classes)
    pair = paired(a, b)
    assert len(pair) == 150
    for name, outcome in OUTCOMES.items():
        plain = [(not a.wrong[place], not b.wrong[at]) == outcome for at, place in enumerate(kept)]
        assert pair.outcome(name).sum() == sum(plain)
    order = pair.order()
    assert sorted(order) == list(range(150))
    assert (np.diff(pair.disagree[order].astype(int)) <= 0).all()
    assert (a.index[pair.in_a] == b.index[pair.in_b]).all()
    other = dataclasses.replace(b, labels=1 - b.labels if several else b.labels[::-1])
    for bad, reason in ((other, "labels"), (dataclasses.replace(b, classes=["x"] * 4), "classes")):
        with pytest.raises(InputError, match=f"different {reason}"):
            paired(a, bad)


# ---- files ---------------------------------------------------------------------------------------------


@functools.cache
def small_archive() -> bytes:
    data, images = io.BytesIO(), np.zeros((6, 8, 8, 3), np.uint8)
    shares = np.full((6, 3), 1 / 3, np.float32)
    np.savez(data, images=images, labels=np.arange(6) % 3, probabilities=shares, index=np.arange(6))
    return data.getvalue()


@given(data=st.deferred(lambda: damaged_bytes(small_archive())))
@settings(max_examples=150, deadline=None)
def test_a_file_with_any_damage_is_refused_with_a_line_or_has_the_same_shape(tmp_path_factory, data):
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.predictions_path.mkdir()
    (run.predictions_path / "test.npz").write_bytes(data)
    found, line = value_or_line(lambda: load_predictions(run))
    assert "is damaged" in line if found is None else len(found) <= 6


DAMAGED = [
    {"labels": np.array([0, 1])},
    {"labels": np.full(60, 3)},
    {"labels": np.full(60, -1)},
    {"labels": np.full(60, 0.5)},
    {"images": np.zeros((60, 32, 32, 3), np.float32)},
    {"images": np.zeros((60, 32, 32), np.uint8)},
    {"probabilities": np.zeros((60, 3), np.int64)},
    {"probabilities": np.zeros(60, np.float32)},
    {"images": np.array([object()] * 60)},
    {"labels": np.full((60, 3), 2)},
    {"labels": np.full((60, 3), -1)},
    {"labels": np.zeros((60, 2), int)},
    {"labels": np.zeros((3, 3), int)},
]


def test_arrays_that_do_not_fit_together_are_refused_and_no_file_is_another_error(make_run):
    run = make_run()
    with pytest.raises(FileNotFoundError):
        load_predictions(run)
    for change in DAMAGED:
        write_predictions(run)
        rewrite_predictions(run, **change)
        with pytest.raises(InputError, match="is damaged"):
            load_predictions(run)


def test_a_summary_of_another_evaluation_is_ignored(make_run):
    run = make_run()
    write_predictions(run)
    for text in ("", "[]", '{"examples": 59, "classes": ["x", "y", "z"]}'):
        (run.predictions_path / "test.json").write_text(text)
        predictions = load_predictions(run)
        assert predictions.summary == {}
        assert predictions.classes == ["class 0", "class 1", "class 2"]


# ---- cards and figures ---------------------------------------------------------------------------------


def test_a_card_shows_all_labels_and_the_highest_shares_and_escapes_names(make_run):
    run = make_run()
    write_predictions(run)
    predictions = load_predictions(run)
    place = int(np.flatnonzero(predictions.labels == 2)[0])
    text = cards.grid(cards.prediction_cards(predictions, [place], top=3))
    assert "<b>star" not in text and text.count("<img") == 1
    assert "true: &lt;b&gt;star&lt;/b&gt;" in text
    assert f"{predictions.probabilities[place].max():.1%}" in text
    write_several(run)
    several = load_predictions(run)
    places = [int(np.flatnonzero(several.labels.sum(axis=1) == count)[0]) for count in (2, 0)]
    text = cards.grid(cards.prediction_cards(several, places, top=1))
    assert "true: none" in text
    assert f"true: {html.escape(several.names(several.has[places[0]]))}" in text
    relevant = (several.has | several.given)[places]  # all that are true or predicted, and the most probable
    relevant[[0, 1], several.probabilities[places].argmax(axis=1)] = True
    assert text.count('class="lk-bar"') == relevant.sum()


def test_images_are_shown_unchanged():
    for channels in (1, 3):
        image = np.random.default_rng(0).integers(0, 256, (32, 32, channels)).astype(np.uint8)
        png = base64.b64decode(cards.data_uri(image).partition(",")[2])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))).reshape(image.shape), image)


def test_the_notebooks_plots_of_several_labels_are_drawn():
    predictions = made(several=True)
    assert "→" in plots.wrong_predictions(predictions, 8).axes[0].get_title(loc="center")
    assert plots.class_accuracy(predictions).axes[0].get_title(loc="left") == "Recall of each label"
    (text,) = plots.confusion_matrix(predictions.confusion, predictions.classes).texts
    assert "several labels" in text.get_text()
