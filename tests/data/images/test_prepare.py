"""People's pictures become a data set like any other: whole, checked, and the same each time."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data.images.check import Fact
from labkit.data.images.decode import DEEPEST
from labkit.data.images.source import reading_lines
from labkit.data.manifest import load_manifest
from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError


def _data(manifest):
    """Return the images of each split as (pixels, label) pairs, counted."""
    found = {}
    for split in manifest.splits:
        images, labels = load_split(manifest, split)
        found[split] = Counter(
            (image.tobytes(), str(label)) for image, label in zip(images, labels, strict=True)
        )
    return found


def _expected(root: Path, classes) -> Counter:
    return Counter(
        (np.asarray(Image.open(path).convert("RGB")).tobytes(), str(label))
        for label, name in enumerate(classes)
        for path in (root / name).iterdir()
    )


def _counts(manifest):
    return {name: split.count for name, split in manifest.splits.items()}


def test_a_folder_for_each_class(pets, tmp_path):
    result = prepare(None, tmp_path / "data", images=pets)
    manifest = load_manifest(tmp_path / "data", "pets")
    assert result.did_work and result.manifest == manifest
    assert not any("warning" in line for line in result.messages)
    assert manifest.classes == ("cat", "dog") and manifest.image_shape == (10, 10, 3)
    assert _counts(manifest) == {"train": 20, "validation": 2, "test": 2}
    assert sum(_data(manifest).values(), Counter()) == _expected(pets, manifest.classes)
    assert manifest.source["kind"] == "images" and manifest.source["location"] == str(pets)
    assert manifest.source["counts"]["dog"] == {"train": 10, "validation": 1, "test": 1}
    images, _ = load_split(manifest, "train")
    assert manifest.channel_mean == pytest.approx(images.mean(axis=(0, 1, 2)) / 255)
    assert manifest.channel_std == pytest.approx(images.std(axis=(0, 1, 2)) / 255)


def test_splits_by_folder(tmp_path, make_classes):
    root = tmp_path / "pets"
    folders = {"train": "train", "validation": "val", "test": "test"}
    for number, folder in enumerate(folders.values()):
        make_classes(root / folder, ("cat", "dog"), first=100 * number)
    manifest = prepare(None, tmp_path / "data", images=root).manifest
    expected = {split: _expected(root / folder, manifest.classes) for split, folder in folders.items()}
    assert _data(manifest) == expected
    shutil.rmtree(root / "val")
    result = prepare(None, tmp_path / "data", images=root)
    assert _counts(result.manifest) == {"train": 22, "validation": 2, "test": 24}
    assert "no validation pictures are named: 2 of the training pictures are held out" in result.messages
    with pytest.raises(InputError, match="class folder test/fox .* no counterpart"):
        (root / "test" / "fox").mkdir()
        prepare(None, tmp_path / "data", images=root)


def test_cifar10_as_a_folder_of_pictures_gives_the_pixels_and_labels_of_the_archive(
    fake_cifar, prepared, tmp_path
):
    for split in ("train", "test"):
        images, labels = getattr(fake_cifar, f"{split}_images"), getattr(fake_cifar, f"{split}_labels")
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = tmp_path / "cifar" / split / prepared.classes[label] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    manifest = prepare(None, tmp_path / "data", images=tmp_path / "cifar", validation_size=13).manifest
    assert manifest.classes == prepared.classes and manifest.image_shape == prepared.image_shape
    ours, theirs = _data(manifest), _data(prepared)
    assert ours["test"] == theirs["test"]
    assert ours["train"] + ours["validation"] == theirs["train"] + theirs["validation"]
    assert [part.total() for part in ours.values()] == [part.total() for part in theirs.values()]


def test_a_table_of_paths_labels_and_splits(pets, tmp_path):
    rows = [(f"{name}/{number}.png", name, ("train", "test")[number < 3])
            for name in ("cat", "dog") for number in range(12)]  # fmt: skip
    table = pets / "pictures.csv"
    table.write_text("label,path,split\n" + "".join(f"{b},{a},{c}\n" for a, b, c in rows), "utf-8-sig")
    manifest = prepare(None, tmp_path / "data", images=table).manifest
    assert manifest.dataset == "pictures" and manifest.count("test") == 6
    data = _data(manifest)
    assert sum(data.values(), Counter()) == _expected(pets, manifest.classes)
    first = np.asarray(Image.open(pets / "dog" / "0.png")).tobytes()
    assert data["test"][(first, "1")] == 1


def test_cells_in_quotes_behind_a_space_have_no_quotes(pets, tmp_path):
    paths = [path.relative_to(pets).as_posix() for path in sorted(pets.glob("*/*"))]
    table = pets / "pictures.csv"
    rows = [f'"{path}", "a {path.partition("/")[0]}, small"' for path in paths]
    table.write_text("\n".join(['"path", "label"', *rows]))
    made = prepare(None, tmp_path / "data", images=table).manifest
    assert made.classes == ("a cat, small", "a dog, small")


def test_a_semicolon_behind_one_label_says_nothing(pets, tmp_path):
    paths = sorted(path.relative_to(pets) for path in pets.rglob("*.png"))
    table = pets / "one.csv"
    table.write_text("path,label\n" + "".join(f"{path},{path.parent.name};\n" for path in paths))
    manifest = prepare(None, tmp_path / "data", images=table).manifest
    assert not manifest.multi_label and manifest.classes == ("cat", "dog")


def test_several_labels(pets, tmp_path):
    labels = ["cat", "dog", "cat;dog", ""] * 6
    paths = sorted(path.relative_to(pets) for path in pets.rglob("*.png"))
    table = pets / "several.csv"
    table.write_text("path,label\n" + "".join(f"{p},{x}\n" for p, x in zip(paths, labels, strict=True)))
    result = prepare(None, tmp_path / "data", images=table)
    assert any(
        "6 pictures with several labels, and 6 pictures without a label" in line for line in result.messages
    )
    manifest = result.manifest
    assert manifest.multi_label and manifest.classes == ("cat", "dog")
    wanted = {"cat": "[1 0]", "dog": "[0 1]", "cat;dog": "[1 1]", "": "[0 0]"}
    assert sum(_data(manifest).values(), Counter()) == Counter(
        (np.asarray(Image.open(pets / path)).tobytes(), wanted[label])
        for path, label in zip(paths, labels, strict=True)
    )


def test_classes_are_sorted_by_number_and_pictures_without_a_suffix_known_by_content(tmp_path, make_classes):
    root = make_classes(tmp_path / "n", ("class10", "class2", "Äpfel", "apple"), count=14)
    make_classes(root, ("線\n2",), count=4, first=100)
    (root / "class2" / "notes.txt").write_text("a note")
    (root / "class2" / "text").write_bytes(b"BM is how this text begins")
    for kind in ("BMP", "PNG", "WEBP"):
        (root / "class2" / "deeper").mkdir(exist_ok=True)
        Image.new("RGB", (10, 10), "red").save(root / "class2" / "deeper" / kind, kind)
    result = prepare(None, tmp_path / "data", images=root)
    assert result.manifest.classes == ("apple", "class2", "class10", "Äpfel", "線\n2")
    assert sum(_counts(result.manifest).values()) == 63
    assert any(line.startswith("2 files passed over, not pictures: class2/") for line in result.messages)
    assert not any("\n" in line for line in result.messages)
    assert any("線\\n2" in line for line in result.messages)  # fewer than 10 pictures


@pytest.mark.parametrize(
    ("sizes", "options", "size", "line"),
    [
        ([(28, 28)], {}, 28, "that of all pictures"),
        ([(96, 96)], {}, 64, "all pictures are 96 × 96"),
        ([(40, 30), (50, 40), (30, 60)], {}, 30, "3 sizes, from 40 × 30 to 50 × 40"),
        ([(40, 30), (30, 40)], {}, 30, "2 sizes, from 30 × 40 to 40 × 30"),
        ([(300, 200), (200, 300)], {"image_size": 20}, 20, "not square are cropped"),
        ([(300, 200)], {"image_size": 72, "resize": "letterbox"}, 72, "between black bars"),
    ],
)
def test_the_size_of_the_images_is_chosen_and_said(tmp_path, sizes, options, size, line):
    for number in range(12):
        path = tmp_path / "pictures" / ("a", "b")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", sizes[number // 2 % len(sizes)], (number, 0, 0)).save(path)
    result = prepare(None, tmp_path / "data", images=tmp_path / "pictures", **options)
    assert result.manifest.image_shape == (size, size, 3)
    assert any(line in message for message in result.messages)
    assert result.manifest.image_format == ("jpeg" if size > 64 else "pixels")


def test_only_pictures_that_become_larger_are_called_enlarged():
    facts = [Fact("0", width, side) for width, side in ((16, 4), (8, 8), (4, 6))]
    told = {how: "\n".join(reading_lines(facts, 8, how, DEEPEST)) for how in ("crop", "letterbox")}
    assert "\n2 pictures smaller than 8 pixels: enlarged" in told["crop"]
    # Whole, a picture of 16 × 4 pixels becomes one of 8 × 2.
    assert "\n1 picture smaller than 8 pixels: enlarged" in told["letterbox"]


def test_large_images_are_stored_as_jpeg(pets, tmp_path):
    import io

    from labkit.data.tfrecord import fields, image_start, spans

    manifest = prepare(None, tmp_path / "data", images=pets, image_size=80).manifest
    assert manifest.image_format == "jpeg" and manifest.image_shape == (80, 80, 3)
    [shard] = manifest.splits["train"].shards
    data, start = manifest.shard_path(shard).read_bytes(), image_start(manifest)
    for begin, length in zip(*spans(data, shard.count), strict=True):
        [label], _ = fields(np.frombuffer(data, np.uint8, start, begin)[None], manifest)
        image = Image.open(io.BytesIO(data[begin + start : begin + length]))
        assert (image.format, image.size, image.mode) == ("JPEG", (80, 80), "RGB")
        assert "progressive" not in image.info and {c[1:3] for c in image.layer} == {(1, 1)}
        source = [
            np.asarray(Image.open(path).resize((80, 80), Image.Resampling.BICUBIC)).astype(int)
            for path in (pets / manifest.classes[label]).iterdir()
        ]
        assert min(np.abs(np.asarray(image) - other).mean() for other in source) < 4


def test_changed_pictures_are_prepared_again(pets, tmp_path, make_pixels):
    first = prepare(None, tmp_path / "data", images=pets).manifest
    status = (pets / "dog" / "3.png").stat()
    Image.fromarray(make_pixels(999)).save(pets / "dog" / "3.png")
    os.utime(pets / "dog" / "3.png", ns=(status.st_atime_ns, status.st_mtime_ns))
    result = prepare(None, tmp_path / "data", images=pets)
    assert result.did_work and any("have changed" in line for line in result.messages)
    assert result.manifest.checksum != first.checksum
    assert sum(_data(result.manifest).values(), Counter()) == _expected(pets, ("cat", "dog"))


def test_later_calls_keep_what_was_asked_for(pets, tmp_path):
    options = {"image_size": 12, "resize": "letterbox", "validation_size": 5, "train_examples": 8}
    prepare(None, tmp_path / "data", images=pets, **options)
    (pets / "dog" / "3.png").unlink()
    manifest = prepare(None, tmp_path / "data", images=pets).manifest
    assert (manifest.image_shape[0], manifest.count("validation"), manifest.count("train")) == (12, 5, 8)
    assert manifest.source["resize"] == "letterbox"
    changed = prepare("pets", tmp_path / "data", validation_size=0, image_size=10)
    assert changed.did_work and changed.manifest.image_shape[0] == 10
    assert changed.manifest.count("validation") == 0


def test_some_classes_only(tmp_path, make_classes):
    root = make_classes(tmp_path / "zoo", ("ape", "bee", "cat"))
    manifest = prepare(None, tmp_path / "data", images=root, classes=["cat", "ape"]).manifest
    assert manifest.classes == ("cat", "ape") and manifest.all_classes == ("ape", "bee", "cat")
    assert sum(_data(manifest).values(), Counter()) == _expected(root, ("cat", "ape"))
    assert not prepare(None, tmp_path / "data", images=root).did_work


def test_the_pictures_of_another_folder_do_not_replace_a_data_set(pets, tmp_path, make_classes):
    first = prepare(None, tmp_path / "data", images=pets).manifest
    other = make_classes(tmp_path / "other" / "pets", ("cat", "dog"), first=500)
    for options in ({}, {"image_size": 9}):
        with pytest.raises(InputError, match=r"prepared from .*/pets.*give another --name"):
            prepare(None, tmp_path / "data", images=other, **options)
    assert load_manifest(tmp_path / "data", "pets") == first
    shutil.rmtree(other)
    pets.rename(other)  # the same pictures in another place
    assert not prepare(None, tmp_path / "data", images=other).did_work


@pytest.mark.parametrize("removed", [False, True])
def test_a_picture_that_changes_meanwhile_is_refused(pets, tmp_path, removed):
    picture = pets / "cat" / "0.png"

    def change(line):  # this line stands between the checks and the shards
        if line.startswith("image size"):
            picture.unlink() if removed else picture.write_bytes(picture.read_bytes() + b"x")

    reason = r" \(cannot be read: .*\)" if removed else ""
    with pytest.raises(
        InputError, match=rf"0.png has changed since .* a moment ago{reason}; run the command"
    ):
        prepare(None, tmp_path / "data", images=pets, progress=change)
    assert not list(tmp_path.glob("data/*/manifest.json"))
    assert prepare(None, tmp_path / "data", images=pets).did_work


# ---- what people should know ---------------------------------------------------------------------------


def test_doubtful_pictures_are_told(tmp_path, make_classes):
    root = make_classes(tmp_path / "odd", ("a", "b"), count=40)
    for number in range(30):  # each is in both classes
        shutil.copy(root / "a" / f"{number}.png", root / "b" / f"copy{number}.png")
    shutil.copytree(root / "a", root / "c")
    for path in sorted((root / "c").iterdir())[2:]:
        path.unlink()
    lines = prepare(None, tmp_path / "data", images=root).messages
    assert any("same pixels in two splits" in line for line in lines)
    same = r"30 pictures with the same pixels and other labels: a/0\.png \(\w+\) and b/copy0\.png \("
    assert any(re.search(same, line) for line in lines)
    assert any("fewer than 10 training pictures: c (" in line for line in lines)
    assert any("the classes differ in size" in line for line in lines)


def test_a_class_that_its_size_gives_away_is_told(pets, tmp_path):
    for path in (pets / "cat").iterdir():
        Image.open(path).resize((20, 16)).save(path)
    lines = prepare(None, tmp_path / "data", images=pets).messages
    assert any("have one size" in line and "cat (20 × 16)" in line for line in lines)
