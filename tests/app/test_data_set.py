"""What describes a data set, compared with the pixels themselves and with the pipeline of the training."""

import dataclasses
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from PIL.ImageFilter import GaussianBlur
from scipy.ndimage import laplace
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from app.data_set import scan
from app.data_set.augmented import augmented_image, epochs_of
from app.data_set.embed import embedded
from app.data_set.image_map import positions
from app.data_set.scan import find_duplicates, scan_data
from app.data_set.wrong_labels import find_suspected
from labkit.config import Config
from labkit.data.augment import augment
from labkit.data.hashes import augmentation_key
from labkit.data.inputs import augmentation_of
from labkit.data.manifest import Manifest
from labkit.data.pipeline import train_dataset
from labkit.data.records import write_derived
from labkit.data.shards import load_split, read_shard
from labkit.errors import InputError
from tests.tiny import prepare_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Manifest:
    return prepare_tiny(tmp_path_factory.mktemp("tiny"))


def pixels(count: int, shape=(8, 8, 1), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def test_a_scan_agrees_with_the_pixels_and_labels(tiny):
    scan = scan_data(tiny)
    one = tiny.splits["train"]
    twice = dataclasses.replace(one, count=2 * one.count, shards=one.shards * 2)
    both = scan_data(dataclasses.replace(tiny, splits={"train": twice})).splits["train"]
    assert len(both) == 2 * len(scan.splits["train"]) == len(both.digests)
    for name in ("class_sums", "sums", "squares"):  # of several shards, those of all images
        assert np.array_equal(getattr(both, name), 2 * getattr(scan.splits["train"], name))
    for name, found in scan.splits.items():
        images, labels = load_split(tiny, name)
        assert np.array_equal(found.labels, labels)
        assert np.array_equal(found.class_counts, np.bincount(labels, minlength=10))
        np.testing.assert_allclose(found.mean_image, images.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found.class_means[3], images[labels == 3].mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(found.channel_std, (images / 255).std(axis=(0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(scan.splits["train"].channel_mean, tiny.channel_mean, rtol=1e-12)
    np.testing.assert_allclose(scan.splits["train"].channel_std, tiny.channel_std, rtol=1e-9)


@pytest.mark.parametrize(
    ("count", "classes", "several"), [(1, 1, False), (300, 130, False), (40, 130, True), (3, 2, True)]
)
def test_data_sets_of_every_kind_are_read_whole(tiny, tmp_path, count, classes, several):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (count, classes)) if several else rng.integers(0, classes, count)
    names = tuple(f"<b>{number}</b>" for number in range(classes))
    images = pixels(count)
    splits = {"train": (images, labels), "test": (images[:0], labels[:0])}
    kind = {"classes": names, "image_shape": (8, 8, 1), "multi_label": several}
    made = write_derived(tiny, tmp_path, splits, **kind)
    read, found, _ = read_shard(made, made.splits["train"].shards[0])
    assert np.array_equal(read, images)
    assert np.array_equal(found, labels)
    scan = scan_data(made)
    assert len(scan.splits["test"]) == 0
    assert not scan.splits["test"].mean_image.any()
    assert scan.splits["train"].class_counts.sum() == (labels.sum() if several else count)
    find_duplicates(scan)


def test_a_damaged_shard_is_named_with_the_command_that_rebuilds_it(tiny, tmp_path):
    made = write_derived(tiny, tmp_path, {"train": (pixels(9, (32, 32, 3)), np.arange(9))})
    shard = made.shard_path(made.splits["train"].shards[0])
    data = bytearray(shard.read_bytes())
    data[500] ^= 1
    for damage in (bytes(data), bytes(data[:900]), b""):
        shard.write_bytes(damage)
        with pytest.raises(InputError, match=r"train-00000.*labkit data prepare"):
            scan_data(made)
    shard.unlink()
    with pytest.raises(InputError, match=r"train-00000.*labkit data prepare"):
        scan_data(made)


def test_a_darker_image_has_less_brightness_and_a_blurred_one_less_sharpness(tiny, tmp_path):
    sharp = pixels(3, (32, 32, 3))
    blurred = np.stack([np.asarray(Image.fromarray(image).filter(GaussianBlur(2))) for image in sharp])
    flat = np.full((1, 32, 32, 3), 7, np.uint8)
    images = np.concatenate([sharp, blurred, sharp // 4, flat])
    scan = scan_data(write_derived(tiny, tmp_path, {"train": (images, np.arange(10))})).splits["train"]
    np.testing.assert_allclose(scan.brightness, images.mean(axis=(1, 2, 3)) / 255, atol=1e-6)
    assert (scan.sharpness[3:6] < 0.1 * scan.sharpness[:3]).all()
    np.testing.assert_allclose(scan.sharpness[6:9], scan.sharpness[:3], rtol=0.02)  # whatever the contrast
    assert scan.sharpness[9] == 0
    grey = images[0].mean(axis=2, dtype=np.float64)
    laplacian = laplace(grey)[1:-1, 1:-1]
    assert scan.sharpness[0] == pytest.approx(np.var(laplacian) / grey.var(), rel=1e-4)


def test_large_images_are_looked_at_a_few_at_a_time():
    images = np.zeros((128, 224, 224, 3), np.uint8)
    manifest = SimpleNamespace(num_classes=2, image_shape=images.shape[1:])
    tracemalloc.start()
    scan._scanned(manifest, images, np.zeros(128, np.int32), None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * images.nbytes  # all as float32, with what is made of them: ten times


def test_equal_images_are_found_within_and_across_splits(tiny, tmp_path):
    train, test = pixels(30, (32, 32, 3)), pixels(20, (32, 32, 3), seed=1)
    labels = np.arange(30) % 10
    train[7] = train[3]  # with another label
    test[4] = train[11]  # with the same label as there
    test[5] = test[6] = test[2]
    of_test = np.arange(20) % 10
    of_test[4] = labels[11]
    of_test[[2, 5, 6]] = 1
    found = find_duplicates(
        scan_data(write_derived(tiny, tmp_path, {"train": (train, labels), "test": (test, of_test)}))
    )
    groups = [found.groups[group] for group in found.worst_first()]
    assert groups == [
        [("train", 3), ("train", 7)],
        [("train", 11), ("test", 4)],
        [("test", 2), ("test", 5), ("test", 6)],
    ]
    assert found.disagree[found.worst_first()].tolist() == [True, False, False]
    assert found.shared.tolist() == [[2, 1], [1, 3]]


def test_equal_images_with_other_numbers_have_labels_that_differ(tiny, tmp_path):
    images = pixels(6, (32, 32, 3))
    images[1], images[3] = images[0], images[2]
    ages = np.array([[5.0], [5.01], [7.0], [7.0], [0.0], [10.0]], np.float32)  # the first two in one interval
    numbers = {"classes": ("age",), "target_mean": (5.0,), "target_std": (1.0,)}
    found = find_duplicates(scan_data(write_derived(tiny, tmp_path, {"train": (images, ages)}, **numbers)))
    assert found.groups == [[("train", 0), ("train", 1)], [("train", 2), ("train", 3)]]
    assert found.disagree.tolist() == [True, False]


def test_intervals_of_large_numbers_that_lie_close_together_have_different_names(tiny, tmp_path):
    numbers = {"classes": ("time",), "target_mean": (5.0,), "target_std": (1.0,)}
    times = np.linspace(1_000_000, 1_000_010, 6, dtype=np.float32)[:, None]
    made = write_derived(tiny, tmp_path, {"train": (pixels(6, (32, 32, 3)), times)}, **numbers)
    names = scan_data(made).names
    assert len(set(names)) == len(names) == 10 and names[0] == "1000000 – 1000001"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"crop_padding": 3, "crop_padding_mode": "reflect", "flip": "alternating", "cutout_size": 9},
        {"use_distortion_for_training": False},
    ],
    ids=["defaults", "all", "none"],
)
def test_an_augmented_image_is_the_one_that_the_training_gets_at_that_step(tiny, fields):
    config = Config.from_flat({"dataset": "shapes", "train_batch_size": 16, "seed": 5, **fields})
    original, made = augmented_image(tiny, config, 42, [0, 1, 6])
    assert np.array_equal(original, load_split(tiny, "train")[0][42])
    given = {"global_batch_size": 16, "seed": 5, "augmentation": augmentation_of(config.data)}
    given |= {"standardized": False, "input_path": "memory", "with_index": True}
    for shown in made:
        [batch] = train_dataset(tiny, start_step=shown.step - 1, stop_step=shown.step, **given)
        images, _, rows = (part.numpy() for part in batch)
        assert any(np.array_equal(image, shown.image) for image in images[rows == 42])
        # Undone, the moves that are named give the original's middle.
        if not fields:
            plain = shown.image[:, ::-1] if shown.flipped else shown.image
            moved = np.roll(plain, (-shown.down, -shown.right), axis=(0, 1))
            assert np.array_equal(moved[4:-4, 4:-4], original[4:-4, 4:-4])


def test_a_stream_has_the_same_augmentation_and_a_resized_run_smaller_images(tiny):
    fields = {"dataset": "shapes", "train_batch_size": 16, "input_path": "streaming"}
    _, made = augmented_image(tiny, Config.from_flat(fields), 3, [2])
    assert made[0].step is None
    config = Config.from_flat({**fields, "input_path": "memory"})
    settings = augmentation_of(config.data)
    image = load_split(tiny, "train")[0][3:4]
    expected = augment(
        image, tiny, settings, key=augmentation_key(0), epoch=np.array([2]), index=np.array([3], np.int64)
    )
    assert np.array_equal(made[0].image, expected[0])
    data = dataclasses.replace(config.data, progressive_resizing="16:0.5")
    config = dataclasses.replace(config, data=data)
    ends = 0.5 * config.run.train_steps * 16 / 180
    _, made = augmented_image(tiny, config, 3, [0, int(ends) + 2])
    assert [part.image.shape[0] for part in made] == [16, 32]


def test_epochs_are_numbers_and_ranges():
    assert epochs_of(" 0-3, 7 , 100–101") == [0, 1, 2, 3, 7, 100, 101]
    for text in ("", "x", "3-1", "-1", "1.5", "0-1000000", "9" * 30, ",".join(["1"] * 99), "<b>"):
        with pytest.raises(InputError):
            epochs_of(text)


@pytest.mark.parametrize("seed", range(2))
def test_most_labels_flipped_on_purpose_are_found(seed):
    """Out-of-sample predictions of 1,797 handwritten digits, 8 % of whose labels are made wrong."""
    features, true = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    flipped = rng.random(len(true)) < 0.08
    labels = np.where(flipped, (true + rng.integers(1, 10, len(true))) % 10, true)
    model = LogisticRegression(C=0.01, max_iter=200)
    shares = cross_val_predict(model, features / 16, labels, cv=3, method="predict_proba")
    found = find_suspected(labels, shares)
    listed = np.zeros(len(true), bool)
    listed[found.index] = True
    assert (listed & flipped).sum() >= 0.8 * flipped.sum()
    assert (listed & flipped).sum() >= 0.6 * listed.sum()
    suggested = found.suggested.argmax(axis=1)
    caught = flipped[found.index]
    assert (suggested == true[found.index])[caught].mean() > 0.85
    assert (np.diff(found.score) >= 0).all()
    assert flipped[found.index[:40]].mean() > 0.9, "the worst come first"


def test_wrong_labels_of_images_with_several_are_found_with_the_class_that_is_wrong():
    rng = np.random.default_rng(0)
    true = rng.random((600, 4)) < 0.4
    shares = np.clip(np.where(true, 0.85, 0.1) + rng.normal(0, 0.08, true.shape), 0.01, 0.99)
    labels = true.astype(np.int32)
    labels[:20, 2] ^= 1
    found = find_suspected(labels, shares)
    assert (found.index < 20).sum() > 10, "most"
    assert (found.index >= 20).sum() <= 3
    right = [np.array_equal(s, true[i]) for i, s in zip(found.index, found.suggested, strict=True) if i < 20]
    assert np.mean(right) > 0.9


ODD = (
    ([0], [[0.2, 0.8]]),
    ([0, 0, 0], [[1.0], [1.0], [1.0]]),
    ([2, 2, 2], [[0.9, 0.1, 0.0]] * 3),
    ([], np.zeros((0, 3))),
    (np.zeros((2, 3), int), np.full((2, 3), 0.1)),
    (np.ones((1, 1), int), [[0.1]]),
    ([0, 1], [[1.0, 0.0], [0.0, 1.0]]),
)


@pytest.mark.filterwarnings("ignore:May not flag")
def test_small_and_odd_splits_have_an_answer_and_what_is_no_number_is_refused():
    for labels, shares in ODD:
        labels, shares = np.asarray(labels, np.int32), np.asarray(shares, float)
        found = find_suspected(labels, shares)
        assert found.looked_at == len(labels)
        assert len(found) <= len(labels)
        assert np.isfinite(found.score).all()
    for refused in (
        lambda: find_suspected(np.array([0, 1]), np.array([[np.nan, 1], [0, 1]])),
        lambda: positions(np.full((3, 2), np.nan, np.float32)),
    ):
        with pytest.raises(InputError, match="NaN"):
            refused()


def test_alike_images_lie_together_and_the_map_is_the_same_again():
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), 30)
    features = (10 * np.eye(4)[kinds] @ rng.normal(size=(4, 16)) + rng.normal(size=(120, 16))).astype(
        np.float32
    )
    where = positions(features)
    assert np.array_equal(where, embedded(features))
    assert np.abs(where).max() == 1
    apart = np.linalg.norm(where[:, None] - where[None], axis=2) + np.eye(120) * 9
    assert (kinds[apart.argmin(axis=1)] == kinds).mean() > 0.95


@pytest.mark.parametrize("shape", [(1, 5), (2, 5), (7, 1), (9, 1), (12, 3)])
def test_few_or_equal_images_have_places(shape):
    for features in (np.ones(shape), np.random.default_rng(0).normal(size=shape)):
        where = embedded(features.astype(np.float32))
        assert where.shape == (shape[0], 2) and np.isfinite(where).all()
        assert np.abs(where).max() <= 1
