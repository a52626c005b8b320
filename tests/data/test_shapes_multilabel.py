"""Multi-label data sets: generated, stored, batched, and distinguished from single-label ones."""

import json

import numpy as np
import pytest
import tensorflow as tf

from labkit.data import shapes
from labkit.data.manifest import Manifest, load_manifest
from labkit.data.pipeline import InputShare, train_dataset
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.data.subset import strata, stratified_rows
from labkit.errors import InputError
from tests.multilabel import TEST, TRAIN, VALIDATION, prepare_small


@pytest.fixture(scope="module")
def drawn():
    return shapes.generate(train_count=600, test_count=90, targets="classes")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return prepare_small(tmp_path_factory.mktemp("data"))


def test_one_two_and_three_shapes_are_equally_frequent(drawn):
    assert drawn.multi_label and drawn.classes == shapes.CLASSES
    assert drawn.train_labels.shape == (600, 10) and drawn.train_labels.dtype == np.int32
    assert set(np.unique(drawn.train_labels)) == {0, 1}
    np.testing.assert_array_equal(np.bincount(drawn.train_labels.sum(axis=1)), [0, 200, 200, 200])
    # Every shape in about a fifth of the images: 120, with a standard deviation of 10.
    assert (np.abs(drawn.train_labels.sum(axis=0) - 120) < 50).all()


def test_each_label_is_visible_in_the_image():
    """With the same random numbers, other labels change some quadrants and nothing else in the image."""
    images = []
    for labels in ([[1, 1, 0]], [[1, 0, 1]], [[1, 0, 0]]):
        row = np.zeros((1, 10), np.int32)
        row[:, :3] = labels
        images.append(shapes.draw(row, np.random.default_rng(5))[0].astype(int))
    quarters = [image.reshape(2, 16, 2, 16, 3) for image in images]
    differ = [np.abs(quarters[0] - other).max(axis=(1, 3, 4)) > 20 for other in quarters[1:]]
    assert [quarter.sum() for quarter in differ] == [1, 1]


def test_the_manifest_records_multi_label(manifest, tmp_path):
    assert manifest.multi_label and manifest.target_shape == (10,)
    again = load_manifest(manifest.directory.parent, "shapes_multilabel")
    assert again == manifest and again.checksum == manifest.checksum
    content = json.loads(manifest.to_json())
    for value in (False, "yes"):  # part of the checksum, and must be a bool
        with pytest.raises(ValueError, match="checksum|multi_label"):
            Manifest.from_json(json.dumps(content | {"multi_label": value}), manifest.directory)


def test_a_manifest_without_the_multi_label_field_is_read(prepared):
    content = json.loads(prepared.to_json())
    del content["multi_label"]
    old = Manifest.from_json(json.dumps(content), prepared.directory)
    assert old == prepared and old.target_shape == () and not old.multi_label


def test_records_hold_every_label(manifest):
    assert {name: split.count for name, split in manifest.splits.items()} == {
        "train": TRAIN,
        "validation": VALIDATION,
        "test": TEST,
    }
    drawn = shapes.generate(train_count=TRAIN + VALIDATION, test_count=TEST, targets="classes")
    images, labels = load_split(manifest, "test")
    np.testing.assert_array_equal(images, drawn.test_images)
    np.testing.assert_array_equal(labels, drawn.test_labels)
    held_out = stratified_rows(drawn.train_labels, 10, VALIDATION, 0)
    np.testing.assert_array_equal(load_split(manifest, "train")[1], drawn.train_labels[~held_out])


def test_sets_of_labels_are_held_out_in_proportion():
    labels = np.repeat([[1, 0, 0], [0, 1, 1], [1, 1, 1]], [60, 30, 10], axis=0)
    assert strata(labels, 3)[1] == 3
    held_out = stratified_rows(labels, 3, 20, seed=0)
    np.testing.assert_array_equal(labels[held_out].sum(axis=0), [12 + 2, 6 + 2, 6 + 2])


def test_of_sets_that_occur_once_each_class_is_held_out():
    labels = (np.random.default_rng(0).random((1_000, 20)) < 0.4).astype(np.int32)
    assert strata(labels, 20)[1] > 990
    held_out = stratified_rows(labels, 20, 100, seed=0)
    assert held_out.sum() == 100
    assert (abs(labels[held_out].mean(axis=0) - 0.4) < 0.15).all(), "three standard deviations"


@pytest.mark.parametrize("input_path", ["memory", "streaming"])
def test_labels_stay_with_their_images(manifest, input_path):
    images, labels = load_split(manifest, "train")
    known = {image.tobytes(): label.tolist() for image, label in zip(images, labels, strict=True)}
    batches = train_dataset(
        manifest,
        global_batch_size=90,
        seed=3,
        start_step=0,
        stop_step=3,
        augmentation=None,
        standardized=False,
        input_path=input_path,
        share=InputShare(num_replicas=2, num_local_replicas=2),
    )
    assert batches.element_spec[1] == tf.TensorSpec([45, 10], tf.int32)
    seen = 0
    for batch, targets in batches.as_numpy_iterator():
        assert batch.dtype == np.uint8  # the form in which a coordinator sends them
        for image, target in zip(batch, targets, strict=True):
            assert known.pop(image.tobytes()) == target.tolist()
            seen += 1
    assert seen == TRAIN and not known


def test_a_source_for_a_generated_data_set_is_refused(tmp_path):
    with pytest.raises(InputError, match="'shapes_multilabel' is generated"):
        prepare("shapes_multilabel", tmp_path, archive="cifar.tar.gz")
