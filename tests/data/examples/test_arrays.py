"""Arrays become a data set like any other, and what can't be images and labels is refused in one sentence."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import labkit
from labkit.config import Config
from labkit.data.manifest import columns_of, verify_shards
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError
from labkit.training.checks import check_targets
from tests.data.kills import file_states

RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 256, (40, 10, 10, 3), np.uint8)
LABELS = np.tile([2, 0, 1, 0], 10)


def _prepare(data_dir: Path, *, train: Any = (IMAGES, LABELS), test: Any = None, **options: Any):
    examples = {"train": train} | ({} if test is None else {"test": test})
    return prepare("mine", data_dir, examples=examples, **options)


@pytest.fixture
def forms(fake_cifar) -> dict[str, Any]:
    """The small CIFAR-10 in forms that arrays may have: what is done to its images, and to its labels."""
    return {
        "bytes": (lambda images: images, lambda labels: labels),
        "integers": (lambda images: images.astype(np.int64), lambda labels: labels[:, None]),
        "floats to 1": (lambda images: images / 255, lambda labels: np.eye(10)[labels]),
        "halves to 1": (lambda images: (images / 255).astype(np.float16), lambda labels: labels.astype("u1")),
        "floats to 255": (
            lambda images: images.astype(np.float32),
            lambda labels: np.eye(10, dtype=bool)[labels],
        ),
        "channels first": (lambda images: images.transpose(0, 3, 1, 2), lambda labels: labels.tolist()),
        "lists": (list, list),
    }


@pytest.mark.parametrize(
    "form", ["bytes", "integers", "floats to 1", "halves to 1", "floats to 255", "channels first", "lists"]
)
def test_every_form_of_arrays_gives_the_shards_of_the_archive(fake_cifar, prepared, forms, tmp_path, form):
    of_images, of_labels = forms[form]
    given = fake_cifar
    result = _prepare(
        tmp_path,
        train=(of_images(given.train_images), of_labels(given.train_labels)),
        test=(of_images(given.test_images), of_labels(given.test_labels)),
        class_names=list(prepared.classes),
        validation_size=13,
        examples_per_shard=17,
    )
    assert result.manifest.splits == prepared.splits and result.manifest.classes == prepared.classes
    assert result.manifest.channel_mean == prepared.channel_mean
    said = [line for line in result.messages if line.startswith("train: values from 0 to ")]
    how = {"1": ["1 are multiplied by 255 and rounded"], "255": ["255 are rounded"]}.get(form.split()[-1], [])
    assert said == [f"train: values from 0 to {words}" for words in how]


def test_rows_keep_their_order_and_grey_becomes_three_channels(tmp_path):
    grey = IMAGES[..., 0]
    manifest = _prepare(tmp_path, train=(grey, LABELS), test=(grey[:7], LABELS[:7])).manifest
    images, labels = load_split(manifest, "test")
    assert (images == np.repeat(grey[:7, ..., None], 3, axis=3)).all() and (labels == LABELS[:7]).all()
    assert manifest.classes == ("0", "1", "2") and manifest.image_shape == (10, 10, 3)


def test_splits_that_nobody_gives_are_held_out_and_it_is_said(tmp_path):
    result = _prepare(tmp_path / "1")
    counts = {name: split.count for name, split in result.manifest.splits.items()}
    assert counts == {"train": 33, "validation": 3, "test": 4}
    assert any("no test examples are given: 4 of the training" in line for line in result.messages)
    given = dict.fromkeys(("validation", "test"), (IMAGES[:5], LABELS[:5]))
    result = prepare("mine", tmp_path / "2", examples={"train": (IMAGES, LABELS), **given})
    assert [result.manifest.count(name) for name in ("train", "validation", "test")] == [40, 5, 5]
    assert any("same pixels in two splits" in line for line in result.messages)
    _prepare(tmp_path / "3", validation_size=0)
    assert _prepare(tmp_path / "3", validation_size=5).manifest.count("validation") == 5  # with the same name


def test_a_split_that_is_held_out_without_a_class_is_named(tmp_path):
    labels = np.repeat([0, 1, 2], [19, 19, 2])
    said = _prepare(tmp_path, train=(IMAGES, labels)).messages
    assert "warning: no test pictures of 2; results on them say nothing of these classes" in said


def test_images_that_are_the_same_are_named_with_the_splits_that_they_are_in(tmp_path):
    rows = np.arange(40)
    train = {"image": IMAGES[rows % 20], "label": LABELS[rows % 20], "row": rows}
    result = _prepare(tmp_path, train=train)
    splits = {
        row: split for split in result.manifest.splits for row in columns_of(result.manifest, split)["row"]
    }
    [line] = [line for line in result.messages if "same pixels in two splits" in line]
    found = re.findall(r"train\[(\d+)\] \((\w+)\) and train\[(\d+)\] \((\w+)\)", line)
    assert found, line
    for first, of_first, second, of_second in found:
        assert (of_first, of_second) == (splits[first], splits[second]) and of_first != of_second


def test_examples_in_the_order_of_their_classes_are_mixed(tmp_path):
    order = np.argsort(LABELS, kind="stable")
    result = _prepare(tmp_path, train=(IMAGES[order], LABELS[order]))
    assert any("class by class" in line for line in result.messages)
    labels = load_split(result.manifest, "train")[1]
    assert (np.diff(labels) < 0).any() and np.bincount(labels).tolist() == [17, 8, 8]


def test_images_of_another_shape_or_size_are_resized_as_pictures_are(tmp_path):
    wide = _prepare(tmp_path / "1", train=(IMAGES[:, :9], LABELS), image_size=12, resize="letterbox")
    assert wide.manifest.image_shape == (12, 12, 3)
    assert any("scaled whole" in line for line in wide.messages)
    large = _prepare(tmp_path / "2", train=(np.repeat(IMAGES, 8, axis=1).repeat(8, axis=2), LABELS))
    assert large.manifest.image_shape == (64, 64, 3)
    assert any("image size 64: all pictures are 80 × 80" in line for line in large.messages)
    jpeg = _prepare(tmp_path / "3", image_size=72, validation_size=0).manifest
    assert jpeg.image_format == "jpeg" and verify_shards(jpeg) == []


def test_several_ones_in_a_row_are_several_labels(tmp_path):
    targets = RNG.integers(0, 2, (40, 3))
    manifest = _prepare(tmp_path, train=(IMAGES, targets), test=(IMAGES, targets)).manifest
    assert manifest.multi_label and (load_split(manifest, "test")[1] == targets).all()


def test_some_classes(tmp_path):
    manifest = _prepare(tmp_path, class_names=["a", "b", "c"], classes=["c", "a"]).manifest
    assert manifest.classes == ("c", "a") and manifest.all_classes == ("a", "b", "c")
    assert sum(split.count for split in manifest.splits.values()) == 30
    _prepare(tmp_path / "there")
    again = _prepare(tmp_path / "there", class_names=["a", "b", "c"], classes=["c", "a"]).manifest
    assert (again.classes, again.all_classes) == (manifest.classes, manifest.all_classes)


def test_the_same_again_does_nothing_and_other_examples_never_replace_it(tmp_path):
    first = _prepare(tmp_path, class_names=["a", "b", "c"])
    before = file_states(first.manifest.directory)
    for train in ((IMAGES / 255, LABELS[:, None]), (IMAGES, LABELS)):
        again = _prepare(tmp_path, train=train)
        assert not again.did_work and again.manifest == first.manifest
    other = IMAGES.copy()
    other[7, 3, 3, 1] ^= 1
    with pytest.raises(InputError, match="'mine' is there, made of other examples than these; give another"):
        _prepare(tmp_path, train=(other, LABELS))
    assert file_states(first.manifest.directory) == before
    renamed = _prepare(tmp_path, class_names=["a", "b", "x"])
    assert renamed.did_work and renamed.manifest.classes == ("a", "b", "x")
    assert renamed.manifest.splits == first.manifest.splits


def test_a_damaged_shard_needs_the_same_examples_again(tmp_path):
    manifest = _prepare(tmp_path, validation_size=2).manifest
    shard = manifest.shard_path(manifest.splits["train"].shards[0])
    shard.unlink()
    with pytest.raises(InputError) as refused:
        prepare("mine", tmp_path)
    message = str(refused.value)
    assert shard.name in message and "labkit.prepare_data('mine', train=..." in message
    assert "\n" not in message and "labkit.prepare_data('mine', train=..." in manifest.prepare_command
    result = _prepare(tmp_path)
    assert result.did_work and result.manifest == manifest and verify_shards(manifest) == []


@pytest.mark.parametrize("numbers", [LABELS / 4, np.stack([LABELS / 4, -LABELS], axis=1)])
def test_floats_are_numbers(tmp_path, numbers):
    names = ["age", "depth"][: 1 if numbers.ndim == 1 else 2]
    of_arrays = _prepare(tmp_path / "a", train=(IMAGES, numbers), class_names=names)
    manifest = of_arrays.manifest
    assert manifest.targets == "numbers" and manifest.classes == tuple(names)
    assert f"labels are numbers: {', '.join(names)}" in of_arrays.messages
    places = {image.tobytes(): place for place, image in enumerate(IMAGES)}
    for split in manifest.splits:
        images, labels = load_split(manifest, split)
        expected = [np.ravel(numbers[places[image.tobytes()]]) for image in images]
        np.testing.assert_array_equal(labels, np.float32(expected))
    pairs = list(zip(IMAGES, numbers, strict=True))
    assert _prepare(tmp_path / "b", train=pairs, class_names=names).manifest.splits == manifest.splits
    assert not _prepare(tmp_path / "a", train=pairs).did_work


def test_whole_floats_are_numbers_and_it_is_said_how_they_become_classes(tmp_path):
    result = _prepare(tmp_path, train=(IMAGES, LABELS.astype(float)))
    assert result.manifest.targets == "numbers"
    [line] = [line for line in result.messages if line.startswith("labels are numbers: number; ")]
    assert "if they are classes, give them with an integer type, labels.astype(int)" in line
    words = r"--loss mse or .* under another name with labels of an integer type, labels\.astype\(int\)"
    with pytest.raises(InputError, match=words):
        check_targets(Config.from_flat({"dataset": "mine"}), result.manifest)


def test_columns_beside_arrays_stay_with_their_images(tmp_path):
    cameras = [f"camera {place % 7}" for place in range(40)]
    days = np.datetime64("2026-01-01", "ns") + np.arange(40) * np.timedelta64(1, "D")
    train = {"image": IMAGES, "label": LABELS, "camera": cameras, "age": np.arange(40), "day": days}
    manifest = _prepare(tmp_path, train=train).manifest
    assert manifest.splits == _prepare(tmp_path / "without").manifest.splits
    for split in manifest.splits:
        known = columns_of(manifest, split)
        for image, camera, age, day in zip(load_split(manifest, split)[0], *known.values(), strict=True):
            assert (image == IMAGES[int(age)]).all() and camera == cameras[int(age)]
            assert day == str(days[int(age)])
    one_by_one = [dict(zip(train, row, strict=True)) for row in zip(*train.values(), strict=True)]
    assert not _prepare(tmp_path, train=one_by_one).did_work
    assert not _prepare(tmp_path, train=(IMAGES, LABELS)).did_work  # asks for no columns
    older = _prepare(tmp_path, train={**train, "age": np.arange(40) + 1})
    assert older.did_work
    assert [int(age) - 1 for age in columns_of(older.manifest, split)["age"]] == [*map(int, known["age"])]


NAN = np.where(IMAGES > 250, np.nan, IMAGES)
BAD = {
    "rank of images": ({"train": (IMAGES[0, 0], LABELS)}, "images of train: the shape .10, 3.; allowed"),
    "channels": ({"train": (IMAGES[..., :2], LABELS)}, r"the shape \[40, 10, 10, 2\]; allowed"),
    "rank of labels": ({"train": (IMAGES, LABELS[:, None, None])}, r"labels of train: int64 \[40, 1, 1\]"),
    "lengths": ({"train": (IMAGES, LABELS[:-1])}, "40 images and 39 labels; give a label for each"),
    "length of a column": (
        {"train": {"image": IMAGES, "label": LABELS, "camera": ["a"]}},
        "the column 'camera' of train has 1 texts, numbers and dates for 40 images; give one for each",
    ),
    "a column of arrays": (
        {"train": {"img": IMAGES, "label": LABELS, "box": IMAGES}},
        "has 0 texts, numbers and dates",
    ),
    "a dict without labels": (
        {"train": {"image": IMAGES, "y": LABELS}},
        "train has the entries image, y; allowed",
    ),
    "lengths of test": ({"test": (list(IMAGES), [1, 2])}, "test has 40 images and 2 labels"),
    "negative labels": ({"train": (IMAGES, LABELS - 1)}, "labels of train: from -1 to 1; allowed: whole"),
    "large labels": ({"train": (IMAGES, LABELS * 10**6)}, "from 0 to 2000000; allowed: whole"),
    "labels that are no numbers": ({"train": (IMAGES, LABELS * np.nan)}, "the labels of train: NaN"),
    "shares": ({"train": (IMAGES, np.full((40, 4), 0.25))}, "shares of classes, which sum to 1"),
    "floats and classes": ({"test": (IMAGES, LABELS / 2)}, "test has floats as labels, and the others whole"),
    "names of numbers": (
        {"train": (IMAGES, LABELS / 2), "class_names": ["a", "b"]},
        "class_names has 2 names and the labels 1",
    ),
    "classes of numbers": ({"train": (IMAGES, LABELS / 2), "classes": ["0"]}, "--classes needs classes"),
    "words": ({"train": (IMAGES, ["cat", "dog"] * 20)}, "labels of train: <U3 .40.; allowed: numbers; num"),
    "words as objects": (
        {"train": (IMAGES, np.array(["cat", "dog"] * 20, object))},
        r"object \[40\]; allowed: numbers; number the texts: .*class_names=list\(names\)",
    ),
    "a class that is missing": ({"train": (IMAGES, LABELS * 2)}, "class 1 and 1 more: no examples left"),
    "classes of test": ({"test": (IMAGES, LABELS + 1)}, "class 3: no examples left to train on"),
    "one class": ({"train": (IMAGES, LABELS * 0)}, "there is one class only; give two or more"),
    "forms of labels": ({"test": (IMAGES, np.eye(3)[LABELS])}, r"train \[n\], test \[n, 3\]; give all"),
    "beyond 255": ({"train": (IMAGES + 0.5, LABELS)}, "float64 from 0.5 to 255.5; allowed: whole"),
    "integers beyond 255": (
        {"train": (np.uint16(1000) + IMAGES, LABELS)},
        "uint16 from 1000 to 1255; allowed",
    ),
    "negative": ({"train": (IMAGES / 128 - 1, LABELS)}, "float64 from -1.0 to 0.99"),
    "between the scales": ({"train": (IMAGES / 250, LABELS)}, "no value above 1, of 255; give floats"),
    "scaled integers": ({"train": (IMAGES // 255, LABELS)}, "no value above 1, of 255; give floats"),
    "four bits": ({"train": (IMAGES // 15.9, LABELS)}, "no value above 16, of 255; .* scale them"),
    "NaN": ({"train": (NAN, LABELS)}, "float64 from nan to nan; allowed"),
    "truth values": ({"train": (IMAGES > 3, LABELS)}, "bool from False to True; allowed"),
    "objects": ({"train": (IMAGES.astype(object), LABELS)}, r"object \[40, 10, 10, 3\]; allowed: numbers"),
    "nothing": ({"train": (IMAGES[:0], LABELS[:0])}, "images of train: none; give one at least"),
    "two examples": ({"train": (IMAGES[:1], LABELS[:1])}, "leaves nothing|no examples left"),
    "few names": ({"class_names": ["a", "b"]}, "class_names has 2 names and the labels 3 classes"),
    "names of whole floats": (
        {"train": (IMAGES, LABELS.astype(float)), "class_names": ["a", "b", "c"]},
        r"class_names has 3 names for one number of each image; .* labels\.astype\(int\)",
    ),
    "no name": ({"class_names": ["a", "", "c"]}, "class_names has a class without a name; give each"),
    "a name twice": ({"class_names": ["a", "b", "a"]}, "classes a and a in class_names"),
    "validation": ({"validation_size": 40}, "40 leaves nothing to train on; give less than 36"),
    "an archive": ({"archive": "/a.tar.gz"}, "--archive is '/a.tar.gz', but only cifar10"),
    "another source": ({"images": "/"}, "train together with --images; a data set has one source"),
    "size": ({"image_size": 4}, "--image-size is 4; allowed: 8 to 1024"),
    "damaged files": ({"skip_damaged": True}, "--skip-damaged is True without --images"),
}


def test_texts_are_numbered_in_the_way_that_their_refusal_names(tmp_path):
    given = np.array(["dog", "cat", "owl"])[LABELS]
    with pytest.raises(InputError, match=re.escape("numpy.searchsorted(names, labels)")):
        _prepare(tmp_path / "data", train=(IMAGES, given))
    names = np.unique(given)
    made = _prepare(tmp_path / "data", train=(IMAGES, np.searchsorted(names, given)), class_names=list(names))
    assert made.manifest.classes == ("cat", "dog", "owl")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence_and_nothing_is_written(tmp_path, case):
    options, message = BAD[case]
    with pytest.raises(InputError, match=message) as refused:
        _prepare(tmp_path / "new" / "data", **options)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert not (tmp_path / "new").exists()


def test_names_that_are_missing_taken_or_of_another_kind(tmp_path, pets):
    examples = {"train": (IMAGES, LABELS)}
    with pytest.raises(InputError, match="train needs one name for the data set"):
        prepare(None, tmp_path, examples=examples)
    with pytest.raises(InputError, match="the name of the data set is ''; allowed: up to 64 letters"):
        prepare("", tmp_path, examples=examples)
    with pytest.raises(InputError, match="'cifar10', which labkit uses itself; give another name"):
        prepare("cifar10", tmp_path, examples=examples)
    with pytest.raises(InputError, match="class_names are given without"):
        prepare("shapes", tmp_path, class_names=["a"])
    with pytest.raises(InputError, match="test is given without train"):
        labkit.prepare_data("mine", test=(IMAGES, LABELS), data_dir=tmp_path)
    prepare(None, tmp_path, images=pets, name="mine")
    with pytest.raises(InputError, match="holds another kind of data set; give another --name"):
        _prepare(tmp_path)
