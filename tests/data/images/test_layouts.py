"""Folders are recognised as classes or splits, or refused with what was seen; each file is counted."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data.images.layouts import Listing, find_folders
from labkit.data.images.walk import split_of
from labkit.data.prepare import prepare
from labkit.errors import InputError


def _tree(root: Path, *paths: str) -> Path:
    """Write files; where a path ends in ``*``, three pictures in that folder."""
    for path in paths:
        for name in [f"{path[:-1]}{number}.jpg" for number in range(3)] if path.endswith("*") else [path]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"")
    return root


def _by_split(listing: Listing) -> dict[str, list[str]]:
    return {split: [p for p, s in zip(listing.paths, listing.splits, strict=True) if s == split]
            for split in sorted(set(listing.splits))}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "split"),
    [
        ("train Training TRAIN_2024 training_set train-set Trainset TrainImages train2017 trn", "train"),
        ("val VALID validation Validation-Set valset dev eval evaluation val2017", "validation"),
        ("test Testing test_set TEST-SET testset TestData test1 Test_Images_2", "test"),
        ("trains trainer invalid latest crash_test cats_train contest value 2024 set", None),
    ],
)
def test_the_names_of_splits(names, split):
    assert {name: split_of(name) for name in names.split()} == dict.fromkeys(names.split(), split)


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [("training_set", "", "test_set"), ("Train Data", "dev", "TEST_2024"), ("trainset", "valid-set", "")],
)
def test_folders_named_like_splits_are_splits(tmp_path, train, validation, test):
    named = {"train": train, "validation": validation, "test": test}
    for folder in filter(None, named.values()):
        _tree(tmp_path, f"{folder}/cat/*", f"{folder}/dog/*")
    listing = find_folders(tmp_path)
    assert listing.classes == ("cat", "dog") and listing.layout == "splits"
    for split, paths in _by_split(listing).items():
        assert paths and all(path.startswith(f"{named[split]}/") for path in paths)
    assert listing.notes[0].startswith(f"splits by folder: {train} for training")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["train/*", "test1/*"], "train is named like a split and has 3 pictures, but no class folders"),
        (["train/a/*", "train/b/*", "test/*"], "test/CLASS, or leave it out with --images .*/train; if"),
        (["train/a/*", "train/b/*", "c/*"], r"named like splits \(train\) beside c; .*--classes c,train"),
        (["a/*", "b/*", "test/*"], r"named like splits \(test\) beside a, b; .* --classes a,b,test"),
        (["a_train/*", "a_test/*", "b_train/*"], r"like splits \(a_test, a_train, b_train\); name the"),
        (["seg_train/seg_train/a/*", "seg_test/seg_test/a/*"], r"like splits \(seg_test, seg_train\)"),
        (["train/a/*", "unlabeled/x/*"], r"like splits \(train\) beside unlabeled"),
        (["test/a/*", "val/a/*"], r"\(val, test\), but none for training; name it train"),
        (["train/a/*", "training/a/*"], r"two folders for one split \(train, training\); keep one"),
        (
            ["train/train/a/*", "train/train/b/*", "test/test/a/*"],
            r"one folder only, train, .*\(a, b\).*move",
        ),
        (
            ["a/train/*", "a/test/*", "b/train/*"],
            r"like splits \(a/test, a/train\); put the folders of splits ar",
        ),
        (
            ["fold1/a/*", "fold1/b/*", "fold2/a/*", "fold2/b/*"],
            r"same folders \(a, b\) in several of fold1, fold2",
        ),
        (
            ["train/x/a/*", "train/x/b/*", "train/y/a/*", "train/y/b/*"],
            "same folders .* several of train/x, train/y",
        ),
        (["zip/a/*", "zip/b/*"], "give --images .*/zip$"),
        (["zip/data/train/a/*", "zip/data/train/b/*", "zip/data/test/a/*"], "give --images .*/zip/data$"),
        (["images/train/*", "images/val/*", "labels/train/1.txt"], "images/train is named like a split"),
        (
            ["images/*", "labels.csv"],
            "one class only, images; .*give --images .*/labels.csv, with the columns",
        ),
        (["0.jpg", "1.jpg"], "2 pictures directly in .*, such as 0.jpg, .*a class is a folder"),
        (["train/0.jpg"], "train is named like a split and has 1 picture, but no class folders"),
    ],
)
def test_what_could_be_something_else_is_refused_with_what_was_seen(tmp_path, paths, message):
    with pytest.raises(InputError, match=message) as caught:
        find_folders(_tree(tmp_path, *paths))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "classes"),
    [
        (["train/*", "test/*"], ("train", "test")),
        (["a/*", "b/*", "test/*"], ("a", "b")),
        (["fold1/a/*", "fold1/b/*", "fold2/a/*", "fold2/b/*"], ("fold1", "fold2")),
        (["a/train/*", "a/test/*", "b/test/*"], ("a", "b")),
    ],
)
def test_classes_that_are_named_by_the_user_are_classes(tmp_path, paths, classes):
    listing = find_folders(_tree(tmp_path, *paths, "empty/notes.txt"), classes)
    assert set(classes) <= set(listing.classes) and listing.layout == "classes"
    assert len(listing.paths) == 3 * len(paths)


@pytest.mark.parametrize(
    ("paths", "classes"),
    [
        (["car/*", "plane/*", "train/*"], ("car", "plane", "train")),  # as in CIFAR-100
        (["cat/images/*", "dog/images/*"], ("cat", "dog")),
        (["animal/cat/*", "animal/dog/*", "vehicle/car/*"], ("animal", "vehicle")),
        (["crash_test/*", "street/*"], ("crash_test", "street")),
        (["new/*", "used/*", "recycled/*"], ("new", "recycled", "used")),
    ],
)
def test_ordinary_classes_need_no_help(tmp_path, paths, classes):
    assert find_folders(_tree(tmp_path, *paths)).classes == classes


def test_every_file_is_counted(tmp_path):
    system = [
        *("a/@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "@eaDir/x.jpg"),
        *("a/.thumbnails/0.jpg", "__MACOSX/a/._0.jpg", "a/._0.jpg", "b/Thumbs.db", ".DS_Store", "Icon\r"),
        *("b/.AppleDouble/0.jpg", "lost+found/0.jpg", "$RECYCLE.BIN/0.jpg", "a/.ipynb_checkpoints/0.jpg"),
        *("#recycle/0.jpg", "System Volume Information/x", "b/desktop.ini", "__pycache__/x.pyc"),
    ]
    paths = [
        "train/a/*",
        "train/b/*",
        "test/a/*",
        "test/b/deep/*",
        "*",
        "train/*",
        "docs/x.txt",
        "test/b/y.txt",
    ]
    root = _tree(tmp_path, *paths, *(f"train/{name}" for name in system))
    listing = find_folders(root)
    assert listing.classes == ("a", "b") and len(listing.paths) == 12
    counts = {note.split(":")[0]: int(re.findall(r"\d+", note)[0]) for note in listing.notes[1:]}
    assert counts == {
        "3 pictures in deeper folders, counted to the class around them": 3,
        "warning": 6,  # outside of the class folders
        "2 files passed over, not pictures": 2,
        f"{len(system)} hidden or system files ignored": len(system),
    }
    files = sum(path.is_file() for path in root.rglob("*"))
    assert files == len(listing.paths) + sum(counts.values()) - 3
    assert not any("\r" in note for note in listing.notes)


def test_a_named_split_without_some_classes_is_told(tmp_path, make_classes):
    make_classes(tmp_path / "pets" / "train", ("ant", "cat", "dog"))
    make_classes(tmp_path / "pets" / "test", ("cat",), first=100)
    lines = prepare(None, tmp_path / "data", images=tmp_path / "pets").messages
    assert "warning: no test pictures of ant, dog; results on them say nothing of these classes" in lines


def test_the_first_line_names_the_classes(tmp_path, make_classes):
    said: list[str] = []
    make_classes(tmp_path / "many", tuple(f"c{number}" for number in range(12)), count=4)
    prepare(None, tmp_path / "data", images=tmp_path / "many", progress=said.append)
    assert said[0] == f"48 pictures in 12 classes: {', '.join(f'c{n}' for n in range(10))} and 2 more"


def test_grey_of_twelve_bits_is_not_black(tmp_path):
    """All pictures are scaled alike, and those that stay nearly one shade are counted."""
    from labkit.data.shards import load_split

    highest = {"bright": 4095, "dark": 200}
    for name, high in highest.items():
        (tmp_path / "xray" / name).mkdir(parents=True)
        for number in range(12):
            values = np.random.default_rng(number).integers(0, high + 1, (12, 12)).astype(np.uint16)
            values[0, 0] = high
            Image.fromarray(values).save(tmp_path / "xray" / name / f"{number}.png")
    result = prepare(None, tmp_path / "data", images=tmp_path / "xray")
    assert result.manifest.source["white"] == 4095
    assert (
        "24 pictures of 16-bit grey without values above 4,095: read as 12 bits, so that 4,095 is white"
        in result.messages
    )
    assert any(line.startswith("warning: 12 pictures with 16 bits") for line in result.messages)
    images, labels = load_split(result.manifest, "train")
    assert [images[labels == label].max() for label in (0, 1)] == [255, round(200 * 255 / 4095)]
