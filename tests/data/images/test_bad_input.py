"""What cannot be prepared is refused in one sentence, before anything is written."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from labkit.commands.main import main
from labkit.data.images import layouts
from labkit.data.prepare import prepare
from labkit.errors import InputError


def _refused(tmp_path, match, images, **options) -> str:
    with pytest.raises(InputError, match=match) as caught:
        prepare(options.pop("dataset", None), tmp_path / "new" / "data", images=images, **options)
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()
    assert not (tmp_path / "new").exists()
    return str(caught.value)


def _folder(tmp_path: Path, *names: str) -> Path:
    root = tmp_path / "given"
    root.mkdir(exist_ok=True)
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name / "0.png")
    return root


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "--image-size is 0; allowed: 8 to 1024"),
        ({"resize": "stretch"}, "--resize is 'stretch'; allowed: crop or letterbox"),
        ({"name": "cifar10"}, "--name is 'cifar10', which labkit uses itself"),
        ({"name": "../x"}, "--name is '../x'; allowed"),
        ({"archive": "/a.tar.gz"}, "--archive is '/a.tar.gz', but only cifar10"),
        ({"url": "http://a/"}, "--url is 'http://a/', but only cifar10"),
        ({"dataset": "cifar10"}, "--dataset is 'cifar10' together with --images"),
        ({"validation_size": -1}, "-1 is negative"),
        ({"validation_size": 22}, "22 leaves nothing to train on; give less than 22"),
        ({"train_examples": 1}, "--train-examples is 1"),
        ({"classes": ["cat", "fox"]}, "unknown class 'fox'"),
    ],
)
def test_arguments(pets, tmp_path, options, message):
    _refused(tmp_path, message, pets, **options)


def test_arguments_that_need_pictures_of_ones_own(tmp_path):
    for options, message in (
        ({"name": "x"}, "--name is 'x' without --images"),
        ({"dataset": "shapes", "image_size": 32}, "--image-size is 32 without --images"),
        ({"dataset": "shapes", "skip_damaged": True}, "--skip-damaged is True without --images"),
        ({"dataset": "unknown"}, "'unknown' is unknown; choose one of cifar10, .*--images PATH"),
        ({"dataset": "../x"}, "--dataset is '../x'"),
    ):
        _refused(tmp_path, message, None, **options)


def test_a_folder_of_another_kind_is_left_alone(tmp_path, pets):
    (tmp_path / "new" / "data" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="'mine' is not prepared .*--images PATH --name mine"):
        prepare("mine", tmp_path / "new" / "data")


def test_folders(tmp_path):
    missing = tmp_path / "missing"
    _refused(tmp_path, "does not exist; give a folder or a CSV file", missing)
    _refused(tmp_path, "/dev/null is neither a file nor a folder", "/dev/null")
    root = _folder(tmp_path)
    _refused(tmp_path, "no class folders with pictures in .*/given; allowed: a folder", root)
    (root / "a.txt").write_text("text")
    _refused(tmp_path, r"no class folders .*\(1 file of other kinds\)", root)
    for name in ("a", "b"):
        (root / name).mkdir()
        (root / name / "notes.txt").write_text("text")
    _refused(tmp_path, r"no class folders with pictures in .*\(3 files of other kinds\)", root)
    _folder(tmp_path, "a")
    _refused(tmp_path, "class folder b in .* has no pictures to train on", root)
    shutil.rmtree(root / "b")
    _refused(tmp_path, "has one class only, a; a classifier needs two", root)
    _folder(tmp_path, "a/b", "a/c")
    (root / "a" / "0.png").unlink()
    _refused(tmp_path, "its folders look like the classes, so give --images .*/given/a", root)


@pytest.mark.long
def test_too_many_classes(tmp_path):
    assert layouts.MAX_CLASSES == 10_000
    root = tmp_path / "many"
    for number in range(10_001):
        (root / str(number)).mkdir(parents=True)
    _refused(tmp_path, "has 10,001 classes; allowed: 10,000 at most", root)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("Cat", "cat"), "classes Cat and cat .* differ only in case"),
        (("caf\u00e9", "cafe\u0301"), "differ only in case or in how accents are encoded"),
        (("a\nb", "A\nB"), r"classes A\\nB and a\\nb"),
        ((os.fsdecode(b"\xff"), "a"), "is not UTF-8; rename it"),
    ],
)
def test_names_of_classes(tmp_path, names, message):
    _refused(tmp_path, message, _folder(tmp_path, *names))


@pytest.mark.parametrize("kind", ["empty", "pipe", "broken link", "text"])
def test_single_unreadable_files(tmp_path, pets, kind):
    path = pets / "cat" / "new\n.jpg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "broken link":
        path.symlink_to(pets / "nowhere")
    else:
        path.write_text("" if kind == "empty" else "text")
    reason = {
        "empty": "an empty file",
        "pipe": "not a file",
        "broken link": "a link to .*/nowhere, which does not exist",
    }
    _refused(tmp_path, rf"1 picture of 25 .*new\\n.jpg: {reason.get(kind, 'not a picture')}", pets)


def test_a_file_that_the_system_does_not_give(tmp_path, pets, monkeypatch):
    from labkit.data.images import check

    def refuse(path, *arguments, **options):
        if str(path).endswith("cat/3.png"):
            raise PermissionError(13, "Permission denied", path)
        return open(path, *arguments, **options)

    monkeypatch.setattr(check, "open", refuse, raising=False)
    _refused(tmp_path, "cat/3.png: cannot be read: Permission denied", pets)


def test_links(tmp_path, pets):
    outside = tmp_path / "outside"
    shutil.copytree(pets / "cat", outside)
    (pets / "cat" / "inside.png").symlink_to(pets / "cat" / "0.png")
    assert prepare(None, tmp_path / "ok", images=pets).did_work
    for link, target, problem in (
        ("cat/x.png", outside / "0.png", "a link that leads out of .*/pets, to .*/outside/0.png"),
        ("cat/more", outside, "a link that leads out of"),
        ("cat/again", pets / "cat", "a link to a folder around it"),
        ("cat/gone", "nowhere", "a link to .*/cat/nowhere, which does not exist"),
        ("cat/gone.png", "nowhere", "a link to .*/cat/nowhere, which does not exist"),
    ):
        (pets / link).symlink_to(target)
        _refused(tmp_path, f"1 picture of 26 .*, {link}: {problem}", pets)
        (pets / link).unlink()
    (pets / "wolf").symlink_to("nowhere")  # a class that would be missing without a word
    _refused(tmp_path, "wolf is a link to .*nowhere, which does not exist; put the pictures", pets)
    (pets / "wolf").unlink()
    (pets / "fox").symlink_to(outside)
    _refused(tmp_path, "fox is a link that leads out of .*put the pictures themselves there", pets)


def test_a_link_is_listed_beside_damaged_files_and_left_out_like_them(tmp_path, pets):
    (pets / "cat" / "gone.png").symlink_to(tmp_path / "gone.png")
    (pets / "dog" / "bad.png").write_text("text")
    table = pets / "table.csv"
    paths = ["cat/gone.png", "dog/bad.png", *(f"{name}/{n}.png" for name in ("cat", "dog") for n in range(9))]
    table.write_text("path,label\n" + "".join(f"{path},{path[:3]}\n" for path in paths))
    for images, name in ((pets, "folder"), (table, "table")):
        said: list[str] = []
        _refused(tmp_path, "2 pictures of .* --skip-damaged", images, name=name, progress=said.append)
        assert [line.split(":")[1].strip() for line in said if line.startswith("cannot be used")] == [
            "cat/gone.png",
            "dog/bad.png",
        ]
        manifest = prepare(None, tmp_path / "data", images=images, name=name, skip_damaged=True).manifest
        assert manifest.source["skipped"].keys() == {"cat/gone.png", "dog/bad.png"}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my cats", "my-cats"),
        ("Ähren & Gräser (2)", "Ähren-Gräser-2"),
        ("cifar10", "my-cifar10"),
        ("!", "my-images"),
    ],
)
def test_a_folder_whose_name_cannot_be_a_data_sets_gets_one_proposed(tmp_path, pets, folder, name):
    images = pets.rename(tmp_path / folder)
    _refused(tmp_path, f"the name of --images, can't be .*; add --name {name}, or another$", images)
    assert prepare(None, tmp_path / "data", images=images, name=name).manifest.dataset == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; the first line has to be path,label"),
        (b"path,label\n", "lists no pictures"),
        (b"file,class\ncat/0.png,cat\n", "has the columns file,class; the first line has to be"),
        (b"path;label\ncat/0.png;cat\n", "has semicolons between its columns; save it with commas"),
        (b"path\tlabel\ncat/0.png\tcat\n", "has tabs between its columns"),
        (b"\npath,label\n", "has an empty first line"),
        (b"\x89PNG\r\n\x1a\n", "is a picture; give the folder that has a folder for each class"),
        ("path,label\ncat/0.png,chât\n".encode("latin-1"), r"is not UTF-8 \(line 2\)"),
        ("path,label\n".encode("utf-16"), "is not UTF-8"),
        (b"path,label\ncat/0.png\n", "has 1 cell in row 2 instead of 2"),
        (b"path,label\ncat/0.png,cat\ndog/x.png,dog\n,cat\n", "has ,cat in row 4"),
        (
            b"path,label\ncat/0.png,cat\ndog/x.png,dog\ndog/y.png,dog\n",
            "2 files named in .* are missing: dog/x",
        ),
        (b"path,label\ncat/0.png,cat\n/etc/passwd,dog\n", "names /etc/passwd, which leads out"),
        (b"path,label\ncat/0.png,cat\n../out.png,dog\n", "names ../out.png, which leads out of its folder"),
        (b"path,label\ncat/0.png,cat\ncat/../cat/0.png,dog\n", "twice; give several labels in one row"),
        (b"path,label\ncat/0.png,cat\ncat/1.png,\n", "has no label for cat/1.png"),
        (b"path,label\ncat/0.png,cat\ncat/1.png,cat\n", "has one class only, cat"),
        (b"path,label\ncat/0.png,cat\ncat/1.png,Cat\n", "differ only in case"),
        (b"path,label\ncat/0.png,cat\ncat/1.png,dog;dog\n", "names a label of cat/1.png twice"),
        (b"path,label,split\ncat/0.png,cat,train\ncat/1.png,dog,tset\n", "has cat/1.png,dog,tset in row 3"),
        (b'path,label\n"cat/0.png,cat\n', "is not a CSV file"),
        (b"path,label\ncat/0.png,cat\ncat/\x001.png,dog\n", "not a CSV file|impossible path"),
        (b"path,label\ncat,cat\ncat/1.png,dog\n", "1 file named in .* is missing: cat"),
    ],
)
def test_tables(tmp_path, pets, content, message):
    (tmp_path / "out.png").write_bytes(b"x")
    table = pets / "list.csv"
    table.write_bytes(content)
    _refused(tmp_path, message, table)


def test_too_few_pictures_to_hold_any_out(tmp_path):
    root = _folder(tmp_path, "a", "b")
    _refused(tmp_path, "2 pictures to train on, of which some are held out: too few", root)
    Image.new("RGB", (8, 8)).save(root / "a" / "1.png")
    _refused(tmp_path, "class [ab]: no examples left to train on", root)
    (root / "x.csv").write_text("path,label,split\na/0.png,a,test\nb/0.png,b,test\n")
    _refused(tmp_path, "0 pictures to train on", root / "x.csv")


def test_the_folder_of_the_pictures_is_not_written_to(tmp_path, pets):
    before = sorted(pets.rglob("*"))
    with pytest.raises(InputError, match=r"into the folder of its pictures.*another --name"):
        prepare(None, tmp_path, images=pets)
    with pytest.raises(InputError, match="into the folder of its pictures"):
        prepare(None, pets / "data", images=pets)
    assert sorted(pets.rglob("*")) == before


def test_the_command_and_the_function_prepare_the_same(tmp_path, pets, capsys):
    import labkit

    words = ["--data-dir", str(tmp_path / "1"), "--image-size", "9", "--resize", "letterbox"]
    assert main(["data", "prepare", "--images", str(pets), "--name", "Pets", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("24 pictures in 2 classes: cat, dog\n") and "Pets is prepared in" in said
    assert said.endswith(f"\nnext: labkit train --dataset Pets --preset auto --data-dir {tmp_path / '1'}\n")
    options = {"image_size": 9, "resize": "letterbox", "name": "Pets"}
    manifest = labkit.prepare_data(images=pets, data_dir=tmp_path / "2", **options)
    assert manifest.to_json() == (tmp_path / "1" / "Pets" / "manifest.json").read_text()
    assert main(["data", "prepare", "--dataset", "Pets", "--data-dir", str(tmp_path / "1")]) == 0
    said = capsys.readouterr().out
    assert "every shard verified; nothing left to do\nnext: labkit train --dataset Pets" in said
