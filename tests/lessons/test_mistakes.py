"""The computations of lesson 09, compared with independent ones."""

import numpy as np
import pytest

from course.lessons.mistakes import measures
from course.lessons.mistakes.noisy import ExampleHistory, flip_labels, hunt_scores
from labkit.analysis.predictions import Predictions, forgetting_events
from labkit.analysis.slices import accuracy_interval, quarters, slices_of
from labkit.data import shapes
from labkit.data.manifest import find_manifest, verify_shards
from labkit.data.shards import load_split
from labkit.training.scores import single_label_scores
from tests.tiny import prepare_tiny

NAMES = ["cat", "dog", "ship"]


def make_predictions(count=300, seed=0):
    generator = np.random.default_rng(seed)
    return Predictions(
        generator.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8),
        generator.integers(0, 3, count),
        generator.dirichlet(np.ones(3), count).astype(np.float32),
        np.arange(count),
        NAMES,
    )


# ---- data ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return flip_labels(prepare_tiny(folder / "source"), folder / "noisy", examples=100, share=0.1)


def test_the_stated_share_of_training_labels_is_flipped(noisy):
    assert noisy.flipped.sum() == 10
    assert len(noisy.labels) == len(noisy.images) == 100
    assert noisy.labels.min() >= 0 and noisy.labels.max() < 10


def test_the_flipped_data_set_is_a_prepared_one_with_untouched_evaluation_splits(noisy, tmp_path):
    found = find_manifest(noisy.manifest.directory.parent, noisy.manifest.dataset)
    assert found is not None and verify_shards(found) == []
    images, labels = load_split(found, "train")
    np.testing.assert_array_equal(images, noisy.images)
    np.testing.assert_array_equal(labels, noisy.labels)
    source = prepare_tiny(tmp_path)
    for split in ("validation", "test"):
        for one, other in zip(load_split(found, split), load_split(source, split), strict=True):
            np.testing.assert_array_equal(one, other)


# ---- calibration ---------------------------------------------------------------------------------------


def test_the_calibration_error_of_a_calibrated_network_is_small_and_of_a_sure_one_is_its_error_rate():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(4), 20_000)
    labels = (probabilities.cumsum(axis=1) < generator.random((20_000, 1))).sum(axis=1)
    assert measures.reliability(probabilities, labels).error < 0.02
    sure = np.eye(4)[probabilities.argmax(axis=1)]
    wrong = (probabilities.argmax(axis=1) != labels).mean()
    assert measures.reliability(sure, labels).error == pytest.approx(wrong)


def test_the_bins_hold_every_example_once():
    predictions = make_predictions()
    result = measures.reliability(predictions.probabilities, predictions.labels)
    assert result.counts.sum() == len(predictions)
    used = result.counts > 0
    assert (result.confidence[used] > result.edges[:-1][used] - 1e-6).all()
    assert (result.confidence[used] < result.edges[1:][used] + 1e-6).all()


def test_the_temperature_is_the_minimum_of_a_grid():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(0, 4, (500, 5)), generator.integers(0, 5, 500)
    logits[np.arange(500), labels] += 4
    found = measures.best_temperature(logits, labels)
    grid = np.geomspace(0.2, 8, 400)
    losses = [single_label_scores(labels, logits / t)["loss"] for t in grid]
    assert found == pytest.approx(grid[np.argmin(losses)], rel=0.02)


# ---- history -------------------------------------------------------------------------------------------


def test_a_history_has_the_losses_and_counts_what_is_forgotten():
    history = ExampleHistory(np.zeros((3, 4, 4, 3), np.uint8), np.array([0, 1, 0]), every=5)
    right, wrong = [3.0, 0.0], [0.0, 3.0]
    for step, logits in (
        (5, [right, right, wrong]),
        (10, [wrong, right, wrong]),
        (15, [right, right, wrong]),
    ):
        history.steps.append(step)
        history.logits.append(np.array(logits))
    assert history.right.tolist() == [[True, False, False], [False, False, False], [True, False, False]]
    assert history.losses[0] == pytest.approx(
        [np.log1p(np.exp(-3)), np.log1p(np.exp(3)), np.log1p(np.exp(3))]
    )
    assert forgetting_events(history.right).tolist() == [1, 0, 0]


def test_precision_and_recall_of_suspects():
    precision, recall = hunt_scores([3, 0, 1], np.array([False, True, False, True]))
    assert precision.tolist() == [1.0, 0.5, pytest.approx(2 / 3)]
    assert recall.tolist() == [0.5, 0.5, 1.0]


# ---- slices --------------------------------------------------------------------------------------------


def test_wilsons_interval_contains_the_share_and_narrows():
    def interval(right, total):
        return accuracy_interval(np.arange(total) < right)

    # Brown, Cai and DasGupta (2001), and any table: 8 of 10 gives 0.490 to 0.943.
    assert interval(8, 10) == pytest.approx((0.8, 0.490, 0.943), abs=1e-3)
    assert interval(10, 10)[2] == pytest.approx(1.0)
    widths = [interval(n // 2, n)[2] - interval(n // 2, n)[1] for n in (10, 100, 1000)]
    assert widths[0] > widths[1] > widths[2]


def test_slices_hold_every_example_once_and_chance_draws_as_many_as_asked():
    predictions = make_predictions()
    parts = slices_of(predictions, quarters(predictions.confidence.astype(float)))
    assert [part.count for part in parts] == [75, 75, 75, 75]
    right = sum(part.count * part.value for part in parts)
    assert right == pytest.approx((~predictions.wrong).sum())
    drawn = measures.chance_slices(predictions, size=20, count=3)
    assert [part.count for part in drawn] == [20, 20, 20]


def test_the_radius_of_a_drawn_shape_is_that_of_its_image(tmp_path):
    manifest = prepare_tiny(tmp_path)
    images, labels = load_split(manifest, "test")
    predictions = Predictions(
        images, labels, np.eye(10, dtype=np.float32)[labels], np.arange(40), list(manifest.classes)
    )
    found = measures.image_properties(predictions, manifest)
    assert set(found) == {"brightness", "contrast", "radius"}
    assert ((found["radius"] >= 8) & (found["radius"] <= 12.5)).all()
    drawn, _ = shapes.generate_split(manifest.seed, 40, stream=1)
    np.testing.assert_array_equal(drawn, images)


# ---- maps and figures ----------------------------------------------------------------------------------


def test_the_deletion_test_covers_the_pixels_that_the_map_names():
    images = np.full((2, 10, 10, 3), 200, np.uint8)
    images[:, :5] = 0
    maps = np.zeros((2, 10, 10))
    maps[:, 0] = 1.0
    asked = []

    def predict(given):
        asked.append(given)
        return np.stack([(given[:, 0].mean(axis=(1, 2)) < 50) * 0.8, np.zeros(len(given))], axis=1)

    falls = measures.fall_without(predict, images, np.array([0, 0]), maps)
    assert falls == pytest.approx([0.8, 0.8])
    np.testing.assert_array_equal(asked[1][:, 1:], images[:, 1:])
