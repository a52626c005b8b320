"""Orders, filters, calibration and pairs of predictions, against scikit-learn and plain counting."""

import itertools

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, log_loss, precision_recall_curve

from app.predictions.filters import Filters, chosen, ordered
from app.predictions.pairs import OUTCOMES, paired
from app.predictions.quality import BINS, calibration, precision_recall
from labkit.analysis.predictions import Predictions, forgetting_events
from labkit.errors import InputError

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


@pytest.mark.parametrize("several", [False, True])
def test_filters_keep_what_plain_counting_keeps(several):
    predictions = made(several=several)
    every = [
        (set(np.flatnonzero(has)), set(np.flatnonzero(given)))
        for has, given in zip(predictions.has, predictions.given, strict=True)
    ]

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


def test_orders_put_first_what_they_are_named_after():
    predictions = made()
    two = np.sort(predictions.probabilities, axis=1)[:, -2:]
    by_margin = ordered(predictions, "margin")
    assert (np.diff((two[:, 1] - two[:, 0])[by_margin]) >= 0).all()
    each = [
        log_loss([label], [shares.astype(float) / shares.sum()], labels=range(4))
        for label, shares in zip(predictions.labels, predictions.probabilities, strict=True)
    ]
    np.testing.assert_allclose(predictions.losses, each, rtol=1e-5)
    assert (np.diff(predictions.losses[ordered(predictions, "loss")]) <= 0).all()
    right = np.random.default_rng(2).random((6, EXAMPLES)) < 0.5
    forgotten = forgetting_events(right)
    plain = [sum(a and not b for a, b in itertools.pairwise(row)) for row in right.T.tolist()]
    assert forgotten.tolist() == plain
    order = ordered(predictions, "forgetting", forgotten)
    assert (np.diff(forgotten[order]) <= 0).all() and sorted(order) == list(range(EXAMPLES))
    assert ordered(predictions, "forgetting").tolist() == ordered(predictions).tolist()


def test_several_labels_are_ordered_by_their_summed_loss_and_their_least_decided_label():
    predictions = made(several=True)
    shares, labels = predictions.probabilities.astype(float), predictions.labels
    plain = -(labels * np.log(shares) + (1 - labels) * np.log(1 - shares)).sum(axis=1)
    np.testing.assert_allclose(predictions.losses, plain, rtol=1e-6)
    np.testing.assert_allclose(predictions.margin, np.abs(2 * shares - 1).min(axis=1), rtol=1e-5)


def test_calibration_agrees_with_scikit_learn_and_its_error_with_the_definition():
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


def test_each_of_several_labels_has_its_own_calibration():
    predictions = made(several=True)
    one = calibration(predictions, 2)
    frequency, mean = calibration_curve(
        predictions.labels[:, 2], predictions.probabilities[:, 2], n_bins=BINS
    )
    np.testing.assert_allclose(one.frequency[one.counts > 0], frequency)
    np.testing.assert_allclose(one.confidence[one.counts > 0], mean)
    assert calibration(predictions).counts.sum() == EXAMPLES * 4


@pytest.mark.parametrize("several", [False, True])
def test_precision_and_recall_are_those_of_scikit_learn(several):
    exact = made(several=several)
    # Rounded, so that images share probabilities.
    predictions = Predictions(
        exact.images, exact.labels, exact.probabilities.round(2), exact.index, exact.classes
    )
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
    shares = broken.probabilities.copy()
    shares[:5] = np.nan
    broken = Predictions(broken.images, broken.labels, shares, broken.index, broken.classes)
    assert broken.undefined.sum() == 5
    assert calibration(broken).left_out == 5
    assert set(ordered(broken, "loss")[:5]) == set(range(5))
    for order in ("confidence", "margin", "loss"):
        assert sorted(ordered(broken, order)) == list(range(EXAMPLES))
    assert not set(chosen(broken, Filters(confidence=(0.0, 0.99)))) & set(range(5))
    assert all(0 <= curve.average <= 1 for curve in precision_recall(broken))
    assert len(paired(broken, made(3)).order()) == EXAMPLES
    for predictions in (made(classes=1), made(several=True, classes=1)):
        assert sorted(ordered(predictions, "margin")) == list(range(EXAMPLES))
        assert len(precision_recall(predictions)) == 1
    for several in (False, True):
        empty = made(several=several, examples=0)
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
    counts = dict.fromkeys(OUTCOMES, 0)
    for index, place in enumerate(kept):
        ours, theirs = not a.wrong[place], not b.wrong[index]
        name = next(name for name, outcome in OUTCOMES.items() if outcome == (ours, theirs))
        counts[name] += 1
    assert {name: int(pair.outcome(name).sum()) for name in OUTCOMES} == counts
    order = pair.order()
    assert sorted(order) == list(range(150))
    assert (np.diff(pair.disagree[order].astype(int)) <= 0).all()
    assert (a.index[pair.in_a] == b.index[pair.in_b]).all()
    other = Predictions(
        b.images, 1 - b.labels if several else b.labels[::-1], b.probabilities, kept, b.classes
    )
    with pytest.raises(InputError, match="different labels"):
        paired(a, other)
    renamed = Predictions(b.images, b.labels, b.probabilities, kept, ["x"] * 4)
    with pytest.raises(InputError, match="different classes"):
        paired(a, renamed)
