"""Marks of people, and the data sets that are made of them: what changes, what stays, what is refused."""

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import labkit
from labkit.data.manifest import columns_of, files_of, load_manifest, write_columns
from labkit.data.marks import EXCLUDE, KEEP, LABEL, Marks, change_marks, marks_of, marks_path, read_marks
from labkit.data.prepare import prepare
from labkit.data.related import common_images
from labkit.data.shards import load_split, read_stored
from labkit.errors import InputError
from tests.data.conftest import CLASSES, fake_cifar_10

OWN = [CLASSES[label] for label in fake_cifar_10().test_labels]  # the classes of the test images


def mark(manifest, kind, *places, new=None):
    """Mark images as a page does; return the marks they had before."""
    labels = {split: load_split(manifest, split)[1] for split in manifest.splits}
    said = {(split, row): (manifest.classes[labels[split][row]], new) for split, row in places}
    return change_marks(manifest, marks_of(manifest, kind, said))


def other(manifest, split, row):
    """Return the name of a class that an image doesn't have."""
    return manifest.classes[(load_split(manifest, split)[1][row] + 1) % manifest.num_classes]


def correct(manifest, name="fixed", **options):
    return labkit.correct_data(manifest.dataset, name=name, data_dir=manifest.directory.parent, **options)


def recorded(manifest):
    """What a run records of its data, as far as it says which images are the same."""
    counts = {name: split.count for name, split in manifest.splits.items()}
    return {"checksum": manifest.checksum, "counts": counts, "source": manifest.source}


def test_labels_are_changed_images_left_out_and_all_else_stays(copy, capsys):
    new = other(copy, "train", 30)
    mark(copy, LABEL, ("train", 30), new=new)
    mark(copy, EXCLUDE, ("train", 0), ("train", 50), ("test", 32))
    mark(copy, KEEP, ("test", 1))
    made = correct(copy)
    assert "train: 1 label changed, 2 images excluded" in capsys.readouterr().out
    for split, gone in (("train", [0, 50]), ("validation", []), ("test", [32])):
        (images, labels), (found, given) = load_split(copy, split), load_split(made, split)
        labels[30 if split == "train" else slice(0)] = copy.classes.index(new)
        kept = np.delete(np.arange(len(labels)), gone)
        assert np.array_equal(found, images[kept])
        assert np.array_equal(given, labels[kept])
    pixels = load_split(made, "train")[0] / 255
    np.testing.assert_allclose(made.channel_mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(made.channel_std, pixels.std(axis=(0, 1, 2)), rtol=1e-9)
    source = made.source
    assert (source["location"], source["sha256"]) == ("cifar10", copy.checksum)
    assert source["changed"] == {"train": 1, "validation": 0, "test": 0}
    assert source["excluded"] == {"train": 2, "validation": 0, "test": 1}
    assert (made.classes, made.seed, made.checksum != copy.checksum) == (copy.classes, copy.seed, True)
    before = {path: path.stat().st_mtime_ns for path in made.directory.glob("*.tfrecord")}
    assert correct(copy).checksum == made.checksum
    assert "nothing left to do" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in made.directory.glob("*.tfrecord")}
    assert load_manifest(copy.directory.parent, "cifar10").checksum == copy.checksum


def test_jpegs_are_copied_byte_by_byte_and_files_follow(pets, tmp_path):
    base = prepare(images=pets, data_dir=tmp_path / "data", image_size=72).manifest
    assert base.image_format == "jpeg"
    numbers = {name: [str(row) for row in range(split.count)] for name, split in base.splits.items()}
    write_columns(base, {name: {"number": values} for name, values in numbers.items()})
    mark(base, EXCLUDE, ("train", 4), ("train", 5))
    mark(base, LABEL, ("train", 6), new=other(base, "train", 6))
    made = correct(base)
    rows = np.delete(np.arange(base.count("train")), [4, 5])
    assert read_stored(base, "train", rows) == read_stored(made, "train", np.arange(len(rows)))
    files = files_of(base, "train")
    assert files_of(made, "train") == [files[row] for row in rows]
    assert files_of(made, "test") == files_of(base, "test")
    assert columns_of(made, "train") == {"number": [str(row) for row in rows]}
    beside = made.directory / "files.json"
    shutil.copy(base.directory / "files.json", beside)
    assert files_of(made, "test") is None, "of another data set, though as many"
    beside.write_text(json.dumps({"test": files_of(base, "test")}))
    assert files_of(made, "test") == files_of(base, "test"), "as an earlier labkit wrote it"
    assert made.source["resize"] == base.source["resize"]
    known = read_marks(base).of("train", 6)
    assert known.file == files[6]
    change_marks(base, {("train", 6): replace(known, file=files[7])})
    words = f"the mark 'label' of image 6 of train says file '{files[7]}'; .* has '{files[6]}' there"
    with pytest.raises(InputError, match=words):
        correct(base, "never")
    mark(made, LABEL, ("train", 4), new=known.old)  # it was 6, and has its new class
    assert read_marks(made).of("train", 4).old == known.new
    assert correct(made, "again").source["changed"]["train"] == 1


def test_damage_is_rebuilt_by_the_command_that_the_error_gives(copy):
    mark(copy, EXCLUDE, ("test", 3))
    made = correct(copy)
    folder = copy.directory.parent
    mark(copy, EXCLUDE, ("test", 4))  # later marks don't touch it
    shard = next(made.directory.glob("test-*"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(
        InputError, match=r"fixed was made of cifar10 and its marks; make it again with: "
    ) as e:
        prepare("fixed", folder)
    words = str(e.value).split("make it again with: ")[1].split()
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, timeout=60)
    assert shard.read_bytes() == content
    assert prepare("fixed", folder).messages[0].startswith("fixed is prepared")


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ({"checksum": "0" * 64}, "has marks of other data"),
        ({"marks": {"train": {"87": {"mark": "exclude", "old": "cat"}}}}, "marks name image 87 of 'train'"),
        ({"marks": {"dev": {"0": {"mark": "exclude", "old": "cat"}}}}, "marks name image 0 of 'dev'"),
        ({"marks": {"test": {"0": {"mark": "label", "old": OWN[0], "new": "dgo"}}}}, "unknown class 'dgo'"),
        ({"marks": {"test": {"0": {"mark": "keep", "old": OWN[0]}}}}, "no image of cifar10 is marked"),
        ({"marks": {"test": {n: {"mark": "exclude", "old": OWN[n]} for n in range(33)}}}, "all test images"),
        (
            {"marks": {"test": {n: {"mark": "exclude", "old": OWN[0]} for n in (0, 1)}}},
            f"the mark 'exclude' of image 1 of test says old '{OWN[0]}'; cifar10 has '{OWN[1]}' there; mark",
        ),
        ({"marks": {"test": {"7": {"mark": "label", "old": "dgo", "new": "dog"}}}}, "test says old 'dgo'"),
        ({"marks": {"test": {"7": {"mark": "keep", "old": ""}}}}, "'keep' of image 7 of test says old ''"),
        ({"marks": {"train": {"0": {"mark": "wrong", "old": "cat"}}}}, "cannot be read as marks"),
        ({"marks": 3}, "cannot be read as marks"),
    ],
)
def test_marks_that_do_not_fit_are_refused_in_a_sentence_and_nothing_is_written(
    prepared, tmp_path, marks, words
):
    path = tmp_path / "marks.json"
    path.write_text(json.dumps({"dataset": "cifar10", "checksum": prepared.checksum, "marks": {}} | marks))
    with pytest.raises(InputError, match=words) as refusal:
        correct(prepared, "never", marks=path)
    assert "\n" not in str(refusal.value)
    assert not (prepared.directory.parent / "never").exists()


@pytest.mark.long
def test_a_class_without_training_images_and_names_that_are_taken_are_refused(copy):
    folder, labels = copy.directory.parent, load_split(copy, "train")[1]
    for name in ("cifar10", "a b"):
        with pytest.raises(InputError, match="--name is"):
            correct(copy, name)
    places = [("train", int(row)) for row in np.flatnonzero(labels == 4)]
    before = mark(copy, EXCLUDE, *places)
    with pytest.raises(InputError, match="no training image of deer"):
        correct(copy)
    change_marks(copy, before)
    with pytest.raises(InputError, match="no image of cifar10 is marked"):
        correct(copy)
    mark(copy, EXCLUDE, ("train", 1))
    made = correct(copy)
    with pytest.raises(InputError, match="--name is 'fixed', the data set that is corrected"):
        labkit.correct_data("fixed", name="fixed", data_dir=folder)
    mark(copy, EXCLUDE, ("train", 2))
    with pytest.raises(
        InputError, match="'fixed' is there, made of other data or marks; give another --name"
    ):
        correct(copy)
    assert load_manifest(folder, "fixed").checksum == made.checksum
    grey = np.full((40, 8, 8), 99, np.uint8)
    labkit.prepare_data("given", train=(grey, np.arange(40) % 2), data_dir=folder)
    with pytest.raises(InputError, match="another kind of data set"):
        correct(copy, "given")
    several = prepare("shapes_size", folder).manifest
    change_marks(several, marks_of(several, EXCLUDE, {("train", 1): ("", None)}))
    with pytest.raises(InputError, match="has numbers; only data sets with one class"):
        correct(several)


def test_two_writers_lose_nothing_a_reader_sees_whole_files_and_marks_are_taken_back(copy):
    marks = [marks_of(copy, EXCLUDE, {("train", row): ("cat", None)}) for row in range(40)]
    writers = [
        threading.Thread(target=lambda part=part: [change_marks(copy, each) for each in part])
        for part in (marks[:20], marks[20:])
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        read_marks(copy)  # raises for half a file
    assert read_marks(copy).count(EXCLUDE) == 40
    before = mark(copy, LABEL, ("train", 3), ("train", 60), new="dog")
    assert read_marks(copy).of("train", 60).mark in (LABEL, KEEP)
    change_marks(copy, before)
    found = read_marks(copy)
    assert (found.of("train", 3).mark, found.of("train", 60)) == (EXCLUDE, None)
    assert mark(copy, LABEL, ("test", 0), new=copy.classes[load_split(copy, "test")[1][0]])
    assert read_marks(copy).of("test", 0).mark == KEEP  # the class that it has


def test_a_folder_that_may_not_be_written_is_named(copy):
    copy.directory.with_name(".cifar10.marks.json.lock").mkdir()  # root may write everywhere
    with pytest.raises(InputError, match=r"cifar10\.marks\.json cannot be written: Is a directory"):
        mark(copy, KEEP, ("test", 0))


def test_related_data_sets_know_their_common_images(copy):
    mark(copy, EXCLUDE, ("test", 2))
    mark(copy, LABEL, ("test", 5), new=other(copy, "test", 5))
    first = correct(copy, "first")
    mark(copy, EXCLUDE, ("test", 7))
    sibling = correct(copy, "sibling")
    mark(first, EXCLUDE, ("test", 0))
    mark(first, LABEL, ("test", 9), new=other(first, "test", 9))  # that was 10
    second = correct(first, "second")
    images = {made.dataset: load_split(made, "test") for made in (copy, first, sibling, second)}

    def common(one, two):
        found = common_images(recorded(one), recorded(two), "test")
        for part in (0, 1):  # images and labels
            mine, theirs = images[one.dataset][part], images[two.dataset][part]
            assert np.array_equal(mine[found.first], theirs[found.second])
        return found

    assert set(range(33)) - set(common(copy, first).first.tolist()) == {2, 5}
    assert common(copy, first).left_out == (2, 1)
    assert set(range(33)) - set(common(copy, second).first.tolist()) == {0, 2, 5, 10}
    assert common(second, copy).left_out == (2, 4)
    assert set(common(sibling, second).first.tolist()) == set(range(31)) - {0, 4, 8}
    unrelated = recorded(copy) | {"checksum": "1" * 64}
    assert common_images(unrelated, recorded(first), "test") is None
    broken = recorded(first) | {"source": {**first.source, "lineage": [{"dataset": 3}]}}
    assert common_images(recorded(copy), broken, "test") is None
    assert common_images(recorded(copy), recorded(first) | {"counts": {"test": 99}}, "test") is None


def test_the_file_of_marks_is_beside_the_data_set_and_as_documented(copy):
    mark(copy, LABEL, ("train", 30), new=(new := other(copy, "train", 30)))
    assert marks_path(copy) == copy.directory.parent / "cifar10.marks.json"
    content = json.loads(marks_path(copy).read_text())
    assert (content["dataset"], content["checksum"]) == ("cifar10", copy.checksum)
    [(row, found)] = content["marks"]["train"].items()
    assert (row, found["mark"], found["new"], found["file"]) == ("30", "label", new, None)
    assert found["old"] in copy.classes and found["at"].endswith("+00:00")
    assert read_marks(copy) == Marks("cifar10", copy.checksum, read_marks(copy).marks)
