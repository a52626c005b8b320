"""Parts of a data set: the examples of the chosen classes, renumbered, and no others."""

import numpy as np
import pytest

from labkit.data.archives import ImageData
from labkit.data.loading import load_split
from labkit.data.manifest import find_manifest
from labkit.data.prepare import prepare
from labkit.data.subset import class_names, with_classes, with_train_examples
from labkit.errors import InputError

KNOWN = ("disc", "ring", "star", "4")


def data(labels: np.ndarray) -> ImageData:
    """Images whose pixels are their row."""
    rows = np.arange(len(labels), dtype=np.uint8)
    images = np.broadcast_to(rows[:, None, None, None], (len(labels), 2, 2, 3))
    return ImageData(images, labels, images[:7], labels[:7], KNOWN, "python")


def test_names_and_numbers_mean_classes():
    assert class_names(["star", "0"], KNOWN) == ("star", "disc")
    assert class_names(["4", "1"], KNOWN) == ("4", "ring")  # a name goes before a number


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["star", "rng"], ["'rng'", "did you mean 'ring'"]),
        (["star", "7"], ["class 7", "0 to 3"]),
        (["star", "2"], ["'star' is named twice"]),
        (["star"], ["two or more"]),
        (["star", ""], ["unknown class ''"]),
    ],
)
def test_other_choices_are_refused_in_one_line(wanted, words):
    with pytest.raises(InputError) as refusal:
        class_names(wanted, KNOWN)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def test_chosen_classes_are_renumbered_in_their_order():
    labels = np.random.default_rng(0).integers(0, 4, 100, np.int32)
    chosen = with_classes(data(labels), ("star", "disc"))
    assert chosen.classes == ("star", "disc") and set(chosen.train_labels) == {0, 1}
    rows = chosen.train_images[:, 0, 0, 0]
    np.testing.assert_array_equal(rows, np.flatnonzero((labels == 2) | (labels == 0)))
    np.testing.assert_array_equal(np.array([2, 0])[chosen.train_labels], labels[rows])
    np.testing.assert_array_equal(
        np.array([2, 0])[chosen.test_labels], labels[chosen.test_images[:, 0, 0, 0]]
    )


def test_several_labels_per_image_are_refused():
    with pytest.raises(InputError, match="one label per image"):
        with_classes(data(np.zeros((9, 4), np.int32)), ("star", "disc"))


def test_few_examples_are_balanced_and_grow_from_each_other():
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


def test_a_prepared_part_says_what_it_is_and_is_repaired_as_such(fake_cifar, tmp_path):
    archive = fake_cifar.archive(tmp_path / "cifar-10-python.tar.gz", "python")
    part = {"classes": ["dog", "0", "bird"], "train_examples": 9, "validation_size": 6}
    made = prepare("cifar10", tmp_path / "data", archive=archive, **part).manifest
    assert made.classes == ("dog", "airplane", "bird") and made.num_classes == 3
    assert made.all_classes is not None and len(made.all_classes) == 10 and made.train_examples == 9
    assert (made.count("train"), made.count("validation")) == (9, 6)
    assert find_manifest(tmp_path / "data", "cifar10") == made
    images, labels = load_split(made, "test")
    original = np.array([5, 0, 2])[labels]
    kept = np.isin(fake_cifar.test_labels, (5, 0, 2))
    np.testing.assert_array_equal(images, fake_cifar.test_images[kept])
    np.testing.assert_array_equal(original, fake_cifar.test_labels[kept])
    # Without the flags it stays what it is, and is made whole again.
    made.shard_path(made.splits["train"].shards[0]).unlink()
    assert prepare("cifar10", tmp_path / "data").manifest == made
    again = prepare("cifar10", tmp_path / "data")
    assert not again.did_work and again.manifest == made
    # Another part takes its place; the whole set is a part as well.
    every = prepare("cifar10", tmp_path / "data", classes=list(made.all_classes), train_examples=50).manifest
    assert every.num_classes == 10 and every.all_classes is None and every.count("train") == 50
    assert every.checksum != made.checksum
