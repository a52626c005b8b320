"""People's pictures become a data set like any other: whole, checked, and the same each time."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data import pool, write
from labkit.data.manifest import find_manifest, load_manifest, verify_shards
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


def test_a_folder_for_each_class(pets, tmp_path):
    result = prepare(None, tmp_path / "data", images=pets)
    manifest = load_manifest(tmp_path / "data", "pets")
    assert result.did_work and result.manifest == manifest
    assert manifest.classes == ("cat", "dog") and manifest.image_shape == (10, 10, 3)
    assert {name: split.count for name, split in manifest.splits.items()} == {
        "train": 20, "validation": 2, "test": 2,
    }  # fmt: skip
    assert sum(_data(manifest).values(), Counter()) == _expected(pets, manifest.classes)
    assert manifest.source["kind"] == "images" and manifest.source["location"] == str(pets)
    assert manifest.source["counts"]["dog"] == {"train": 10, "validation": 1, "test": 1}
    images, _ = load_split(manifest, "train")
    assert manifest.channel_mean == pytest.approx(images.mean(axis=(0, 1, 2)) / 255)
    assert manifest.channel_std == pytest.approx(images.std(axis=(0, 1, 2)) / 255)


def test_splits_by_folder(tmp_path, make_classes):
    root = tmp_path / "pets"
    for number, split in enumerate(("train", "val", "test")):
        make_classes(root / split, ("cat", "dog"), first=100 * number)
    manifest = prepare(None, tmp_path / "data", images=root).manifest
    data = _data(manifest)
    for split, folder in (("train", "train"), ("validation", "val"), ("test", "test")):
        assert data[split] == _expected(root / folder, manifest.classes)
    shutil.rmtree(root / "val")
    result = prepare(None, tmp_path / "data", images=root)
    assert {name: split.count for name, split in result.manifest.splits.items()} == {
        "train": 22, "validation": 2, "test": 24,
    }  # fmt: skip
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


@pytest.mark.parametrize("kind", ["BMP", "PNG", "WEBP"])
def test_a_picture_without_a_suffix_is_known_by_its_content(pets, tmp_path, kind):
    Image.new("RGB", (9, 9), "red").save(pets / "cat" / "plain", kind)
    (pets / "cat" / "text").write_bytes(b"BM is how this text begins")
    manifest = prepare(None, tmp_path / "data", images=pets).manifest
    assert sum(map(manifest.count, ("train", "validation", "test"))) == 25


def test_classes_are_sorted_by_number_and_hidden_files_are_passed_over(tmp_path, make_classes):
    root = make_classes(tmp_path / "n", ("class10", "class2", "Äpfel", "apple"), count=14)
    make_classes(root, ("線\n2",), count=4, first=100)
    for name in (".DS_Store", "class2/Thumbs.db", "class2/._0.png", "__MACOSX/class2/0.png", ".git/x.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "class2" / "notes.txt").write_text("a note")
    (root / "class2" / "deeper").mkdir()
    (root / "class2" / "13.png").rename(root / "class2" / "deeper" / "without-suffix")
    result = prepare(None, tmp_path / "data", images=root)
    assert result.manifest.classes == ("apple", "class2", "class10", "Äpfel", "線\n2")
    assert sum(split.count for split in result.manifest.splits.values()) == 60
    assert "1 file passed over, not pictures: class2/notes.txt" in result.messages
    assert any(line.startswith("5 hidden or system files ignored: ") for line in result.messages)
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


def test_large_images_are_stored_as_jpeg(pets, tmp_path):
    import io

    from labkit.data.tfrecord import fields, image_start, spans

    manifest = prepare(None, tmp_path / "data", images=pets, image_size=80).manifest
    assert manifest.image_format == "jpeg" and manifest.image_shape == (80, 80, 3)
    [shard] = manifest.splits["train"].shards
    data, start = manifest.shard_path(shard).read_bytes(), image_start(())
    for begin, length in zip(*spans(data, shard.count), strict=True):
        [label], _ = fields(np.frombuffer(data, np.uint8, start, begin)[None], ())
        image = Image.open(io.BytesIO(data[begin + start : begin + length]))
        assert (image.format, image.size, image.mode) == ("JPEG", (80, 80), "RGB")
        assert "progressive" not in image.info and {c[1:3] for c in image.layer} == {(1, 1)}
        source = [
            np.asarray(Image.open(path).resize((80, 80), Image.Resampling.BICUBIC)).astype(int)
            for path in (pets / manifest.classes[label]).iterdir()
        ]
        assert min(np.abs(np.asarray(image) - other).mean() for other in source) < 4


def _state(directory: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()}


def test_a_second_call_only_verifies(pets, tmp_path):
    first = prepare(None, tmp_path / "data", images=pets)
    before = _state(tmp_path / "data" / "pets")
    for options in ({"images": pets}, {"images": pets, "image_size": 10}):
        again = prepare(None, tmp_path / "data", **options)
        assert not again.did_work and again.manifest == first.manifest
    assert not prepare("pets", tmp_path / "data").did_work
    assert _state(tmp_path / "data" / "pets") == before


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


def test_a_damaged_shard_is_rebuilt_alone(pets, tmp_path):
    manifest = prepare(None, tmp_path / "data", images=pets, examples_per_shard=7).manifest
    shard = manifest.splits["train"].shards[1]
    manifest.shard_path(shard).write_bytes(b"x")
    before = _state(manifest.directory)
    result = prepare("pets", tmp_path / "data", examples_per_shard=7)
    after = _state(manifest.directory)
    assert result.did_work and result.manifest == manifest and not verify_shards(manifest)
    assert {name for name in after if after[name] != before.get(name)} == {shard.file}
    manifest.shard_path(shard).unlink()
    (pets / "cat" / "0.png").unlink()
    with pytest.raises(InputError, match=f"{shard.file} cannot be rebuilt"):
        prepare("pets", tmp_path / "data", examples_per_shard=7)
    shutil.rmtree(pets)
    with pytest.raises(InputError, match="does not exist"):
        prepare("pets", tmp_path / "data", examples_per_shard=7)


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


# ---- damaged files -------------------------------------------------------------------------------------


def _damage(pets: Path, count: int) -> list[str]:
    names = [f"cat/bad{number}.jpg" for number in range(count)]
    for name in names:
        (pets / name).write_text("not a picture")
    return names


def test_damaged_files_are_all_named_before_anything_is_written(pets, tmp_path):
    _damage(pets, 24)
    (pets / "dog" / "0.png").write_bytes((pets / "dog" / "0.png").read_bytes()[:-30])
    said = []
    with pytest.raises(InputError, match=r"25 pictures of 48 .* --skip-damaged") as caught:
        prepare(None, tmp_path / "data", images=pets, progress=said.append)
    assert "\n" not in str(caught.value) and not (tmp_path / "data").exists()
    assert sum(line.startswith("cannot be used: ") for line in said) == 20 and "and 5 more" in said
    listed = Path(str(caught.value).split("listed in ")[1].split(";")[0])
    assert len(listed.read_text().splitlines()) == 25 and "dog/0.png: damaged" in listed.read_text()
    listed.unlink()


def test_a_single_damaged_file_is_named_once(pets, tmp_path):
    _damage(pets, 1)
    said = []
    with pytest.raises(InputError, match=r"1 picture of 25 in .* cannot be used, cat/bad0.jpg: ") as caught:
        prepare(None, tmp_path / "data", images=pets, progress=said.append)
    assert " ".join([*said, str(caught.value)]).count("cat/bad0.jpg") == 1
    prepare(None, tmp_path / "data", images=pets, skip_damaged=True, progress=said.append)
    assert sum("cat/bad0.jpg" in line for line in said) == 1  # here only the line does


def test_damaged_files_are_left_out_if_asked(pets, tmp_path):
    names = _damage(pets, 2)
    result = prepare(None, tmp_path / "data", images=pets, skip_damaged=True)
    assert sum(split.count for split in result.manifest.splits.values()) == 24
    assert set(result.manifest.source["skipped"]) == set(names)
    assert not prepare(None, tmp_path / "data", images=pets).did_work
    shard = result.manifest.splits["train"].shards[0]
    result.manifest.shard_path(shard).unlink()
    assert prepare("pets", tmp_path / "data").manifest == result.manifest  # those are known
    (pets / "dog" / "new.jpg").write_text("another")
    with pytest.raises(InputError, match="3 pictures of 27"):
        prepare(None, tmp_path / "data", images=pets)


def test_pictures_prepared_by_another_version_are_prepared_again_as_they_were(pets, tmp_path):
    (pets / "cat" / "broken.png").write_text("no picture")
    options = {"image_size": 8, "resize": "letterbox", "skip_damaged": True}
    first = prepare(None, tmp_path / "data", images=pets, **options).manifest
    path = first.directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    result = prepare("pets", tmp_path / "data")  # knows the folder, the size and the damaged file
    assert result.did_work and result.manifest == first


# ---- interruptions -------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


def test_an_interrupted_call_is_completed_by_the_next(pets, tmp_path, monkeypatch):
    options = {"images": pets, "examples_per_shard": 4}
    whole = prepare(None, tmp_path / "all", **options).manifest
    real = os.replace
    for point in range(1, 9):
        data_dir, calls = tmp_path / str(point), []

        def stop(*names, calls=calls, point=point):
            calls.append(names)
            if len(calls) == point:
                raise _Killed
            return real(*names)

        with monkeypatch.context() as patch, pytest.raises(_Killed):
            patch.setattr(os, "replace", stop)
            prepare(None, data_dir, **options)
        assert find_manifest(data_dir, "pets") is None
        before = _state(data_dir / "pets")
        said = []
        assert prepare(None, data_dir, **options, progress=said.append).manifest.checksum == whole.checksum
        after = _state(data_dir / "pets")
        kept = [name for name in after if name.endswith(".tfrecord") and after[name] == before.get(name)]
        assert len(kept) == point - 1
        assert any("already written" in line for line in said) == (point > 1)
        shards = {shard.file for split in whole.splits.values() for shard in split.shards}
        assert set(after) == shards | {"manifest.json", "files.json", ".lock"}


def test_what_an_interrupted_call_left_is_not_believed(pets, tmp_path, monkeypatch, make_pixels):
    options = {"images": pets, "examples_per_shard": 4}
    whole = prepare(None, tmp_path / "all", **options).manifest
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(write.Journal, "add_shard", _after(3, write.Journal.add_shard))
        prepare(None, tmp_path / "data", **options)
    shards = sorted((tmp_path / "data" / "pets").glob("*.tfrecord"))
    content = bytearray(shards[0].read_bytes())
    content[-9] ^= 1
    shards[0].write_bytes(content)
    journal = tmp_path / "data" / "pets" / ".pictures.tmp"
    journal.write_text(journal.read_text() + '\n{"plan": 7}\n[1]\n{"facts_of": [')
    assert prepare(None, tmp_path / "data", **options).manifest.checksum == whole.checksum
    assert not verify_shards(load_manifest(tmp_path / "data", "pets"))


def _after(count, function):
    """Return the function, which ends the process, as it were, at the n-th call."""
    calls = []

    def call(*arguments):
        calls.append(arguments)
        if len(calls) == count:
            raise _Killed
        return function(*arguments)

    return call


_KILLED = """
import os, signal, sys
from labkit.data import pool, write
from labkit.data.prepare import prepare
pool._FEW = 0
pool.usable_cores = lambda: 2
real, left = write.Journal.add_shard, [int(sys.argv[3])]
def add_shard(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
write.Journal.add_shard = add_shard
result = prepare(None, sys.argv[1], images=sys.argv[2], examples_per_shard=4)
print(result.manifest.checksum, *(m in sys.modules for m in ("tensorflow", "keras")))
"""


def test_a_killed_call_with_several_processes_goes_on_without_tensorflow(pets, tmp_path):
    whole = prepare(None, tmp_path / "all", images=pets, examples_per_shard=4).manifest

    def start(kill_at):
        command = [sys.executable, "-c", _KILLED, str(tmp_path / "data"), str(pets), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert start(3).returncode == -signal.SIGKILL
    assert find_manifest(tmp_path / "data", "pets") is None
    ended = start(-1)
    assert ended.stdout.split() == [whole.checksum, "False", "False"], ended.stderr
    assert not list((tmp_path / "data" / "pets").glob(".*.tmp"))


def test_a_full_disk_is_one_sentence_and_the_next_call_goes_on(pets, tmp_path, monkeypatch):
    options = {"images": pets, "examples_per_shard": 4}
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="cannot be written to: .*No space left") as caught:
            prepare(None, tmp_path / "data", **options)
    assert "\n" not in str(caught.value)
    said = []
    prepare(None, tmp_path / "data", **options, progress=said.append)
    assert any(line.startswith("going on: 2 of ") for line in said)


def test_the_processes_give_what_one_process_does(pets, tmp_path, monkeypatch):
    alone = prepare(None, tmp_path / "1", images=pets, image_size=70, examples_per_shard=4).manifest
    monkeypatch.setattr(pool, "_FEW", 0)
    monkeypatch.setattr(pool, "usable_cores", lambda: 3)
    several = prepare(None, tmp_path / "2", images=pets, image_size=70, examples_per_shard=4).manifest
    assert alone.checksum == several.checksum
    (pets / "cat" / "1.png").write_text("damaged")
    with pytest.raises(InputError, match="1 picture of 24"):
        prepare(None, tmp_path / "3", images=pets)


def test_a_lost_process_is_one_sentence(monkeypatch):
    monkeypatch.setattr(pool, "_FEW", 0)
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    real = pool.Child

    def killed(*arguments, **options):
        child = real(*arguments, **options)
        child.kill()
        return child

    monkeypatch.setattr(pool, "Child", killed)
    with pytest.raises(InputError, match="ended with status -9"):
        list(pool.do_tasks(max, [1, 2], 2, lambda count: None))


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
    assert any(
        "30 pictures with the same pixels and other labels: a/0.png and b/copy0.png" in x for x in lines
    )
    assert any("fewer than 10 training pictures: c (" in line for line in lines)
    assert any("the classes differ in size" in line for line in lines)


def test_a_class_that_its_size_gives_away_is_told(pets, tmp_path):
    for path in (pets / "cat").iterdir():
        Image.open(path).resize((20, 16)).save(path)
    lines = prepare(None, tmp_path / "data", images=pets).messages
    assert any("have one size" in line and "cat (20 × 16)" in line for line in lines)
    clean = prepare(None, tmp_path / "other", images=pets, name="x", classes=["dog", "cat"], image_size=8)
    assert json.loads((clean.manifest.directory / "manifest.json").read_text())["source"]["kind"] == "images"


def test_ordinary_pictures_need_no_warning(pets, tmp_path):
    assert not any("warning" in line for line in prepare(None, tmp_path / "data", images=pets).messages)
