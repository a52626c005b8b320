"""Choosing examples: classes, validation split, number of training examples; and channel statistics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data.manifest import find_manifest
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.data.subset import (
    ImageData,
    channel_statistics,
    class_names,
    stratified_rows,
    with_classes,
    with_train_examples,
)
from labkit.errors import InputError

KNOWN = ("disc", "ring", "star", "4")


def data(labels: np.ndarray) -> ImageData:
    """Return images whose pixels all equal their row index."""
    rows = np.arange(len(labels), dtype=np.uint8)
    images = np.broadcast_to(rows[:, None, None, None], (len(labels), 2, 2, 3))
    return ImageData(images, labels, images[:7], labels[:7], KNOWN, "python")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["star", "rng"], ["'rng'", "did you mean 'ring'"]),
        (["star", "7"], ["class number 7", "0 to 3"]),
        (["star", "2"], ["'star' is named twice"]),
        (["star"], ["two or more"]),
        (["star", ""], ["unknown class ''"]),
    ],
)
def test_classes_are_given_by_name_or_number_and_others_refused_in_one_line(wanted, words):
    assert class_names(["star", "0"], KNOWN) == ("star", "disc")
    assert class_names(["4", "1"], KNOWN) == ("4", "ring")  # a name takes precedence over a number
    with pytest.raises(InputError) as refusal:
        class_names(wanted, KNOWN)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_of_names_that_are_numbers_none_is_taken_for_the_number_of_a_class():
    with pytest.raises(InputError, match="unknown class '0'"):
        class_names(["0", "2"], ("1", "2", "3"))


def test_a_refusal_does_not_name_ten_thousand_classes():
    many = tuple(f"class{number}" for number in range(10_000))
    for wanted in (["foo", "class1"], ["class1"]):
        with pytest.raises(InputError, match="class0, class1, .* and 9,970 more$"):
            class_names(wanted, many)


def test_labels_are_indices_into_the_chosen_classes():
    labels = np.random.default_rng(0).integers(0, 4, 100, np.int32)
    chosen = with_classes(data(labels), ("star", "disc"))
    assert chosen.classes == ("star", "disc") and set(chosen.train_labels) == {0, 1}
    rows = chosen.train_images[:, 0, 0, 0]
    np.testing.assert_array_equal(rows, np.flatnonzero((labels == 2) | (labels == 0)))
    original = np.array([2, 0])
    np.testing.assert_array_equal(original[chosen.train_labels], labels[rows])
    np.testing.assert_array_equal(original[chosen.test_labels], labels[chosen.test_images[:, 0, 0, 0]])
    with pytest.raises(InputError, match="one label per image"):
        with_classes(data(np.zeros((9, 4), np.int32)), ("star", "disc"))


def test_train_examples_are_balanced_and_nested():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(3, dtype=np.int32), 30))
    images = np.arange(90)
    few, few_labels = with_train_examples(images, labels, 3, 9, seed=4)
    assert np.bincount(few_labels).tolist() == [3, 3, 3]
    np.testing.assert_array_equal(labels[few], few_labels)
    assert set(few) < set(with_train_examples(images, labels, 3, 30, seed=4)[0])
    assert set(few) != set(with_train_examples(images, labels, 3, 9, seed=5)[0])
    for count in (2, 91):
        with pytest.raises(InputError, match="from 3, one of each class, to 90"):
            with_train_examples(images, labels, 3, count, seed=0)
    rare = np.repeat(np.arange(3), [60, 29, 1])
    with pytest.raises(InputError, match="--train-examples is 3, of which class number 2 gets none; give mo"):
        with_train_examples(images, rare, 3, 3, seed=0)


def test_a_prepared_subset_records_its_choice_and_is_repaired_from_it(fake_cifar, tmp_path):
    archive = fake_cifar.archive(tmp_path / "cifar-10-python.tar.gz", "python")
    choice = {"classes": ["dog", "0", "bird"], "train_examples": 9, "validation_size": 6}
    made = prepare("cifar10", tmp_path / "data", archive=archive, **choice).manifest
    assert made.classes == ("dog", "airplane", "bird") and made.num_classes == 3
    assert made.all_classes is not None and len(made.all_classes) == 10 and made.train_examples == 9
    assert (made.count("train"), made.count("validation")) == (9, 6)
    assert find_manifest(tmp_path / "data", "cifar10") == made
    images, labels = load_split(made, "test")
    original = np.array([5, 0, 2])[labels]
    kept = np.isin(fake_cifar.test_labels, (5, 0, 2))
    np.testing.assert_array_equal(images, fake_cifar.test_images[kept])
    np.testing.assert_array_equal(original, fake_cifar.test_labels[kept])
    # A call without the options keeps the subset and repairs it.
    made.shard_path(made.splits["train"].shards[0]).unlink()
    assert prepare("cifar10", tmp_path / "data").manifest == made
    again = prepare("cifar10", tmp_path / "data")
    assert not again.did_work and again.manifest == made
    # Another choice replaces it, also one of all classes.
    every = prepare("cifar10", tmp_path / "data", classes=list(made.all_classes), train_examples=50).manifest
    assert every.num_classes == 10 and every.all_classes is None and every.count("train") == 50
    assert every.checksum != made.checksum


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0, 1), st.integers(0, 2**32))
def test_rows_are_chosen_in_proportion_to_the_classes_and_by_the_seed_alone(labels, share, seed):
    labels = np.array(labels)
    size = round(share * len(labels))
    chosen = stratified_rows(labels, 5, size, seed)
    assert chosen.sum() == size
    exact = np.bincount(labels, minlength=5) * size / len(labels)
    assert (np.abs(np.bincount(labels[chosen], minlength=5) - exact) < 1 + 1e-9).all()
    np.testing.assert_array_equal(stratified_rows(labels, 5, size, seed), chosen)
    many = np.arange(1000) % 10
    first, other = (stratified_rows(many, 10, 100, number) for number in (seed, seed + 1))
    assert (first & other).sum() < 40  # 10 are expected if the choices are independent


def test_channel_statistics_equal_numpys():
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), np.uint8)
    images[..., 2] = 7
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], (images / 255).std((0, 1, 2))[:2], rtol=1e-12)
    assert std[2] == 1.0 or std[2] < 1e-9  # constant: standardized values must stay finite
