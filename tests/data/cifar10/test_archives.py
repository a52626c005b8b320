"""Both published layouts, as archive and as folder, and all ways in which a source can be damaged."""

import dataclasses
import gzip
import io
import os
import pickle
import subprocess
import tarfile

import numpy as np
import pytest

from labkit.commands import main as cli
from labkit.data.cifar10 import archives
from labkit.data.cifar10.archives import CIFAR10
from labkit.data.subset import ImageData
from labkit.errors import InputError
from labkit.startup.child import python_command
from tests.fuzzing import value_or_line

LAYOUTS = ("python", "binary")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["archive", "folder", "parent"])
def test_both_layouts_give_the_same_data_in_every_form(fake_cifar, tmp_path, layout, form):
    if form == "archive":
        source = fake_cifar.archive(tmp_path / "a.tar.gz", layout)
    else:
        folder = fake_cifar.folder(tmp_path, layout)
        source = folder if form == "folder" else tmp_path
    data = CIFAR10.read(source)
    for field, value in vars(fake_cifar).items():
        np.testing.assert_array_equal(getattr(data, field), value)
    assert data.train_images.dtype == data.test_images.dtype == np.uint8
    assert data.classes[0] == "airplane" and len(data.classes) == 10
    assert data.layout == layout


@pytest.mark.parametrize("name", ["../data_batch_1", "/etc/passwd", "a/../../b", ".."])
def test_names_that_point_outside_the_archive_are_refused(make_tar, tmp_path, name):
    with pytest.raises(InputError, match="points outside the archive"):
        CIFAR10.read(make_tar(tmp_path / "a.tar.gz", {name: b"x"}))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(make_tar, tmp_path, kind):
    member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(InputError, match="link or a device"):
        CIFAR10.read(make_tar(tmp_path / "a.tar.gz", {"readme.html": b""}, (member,)))


def test_an_archive_that_unpacks_to_too_much_is_refused(fake_cifar, tmp_path, monkeypatch):
    member = tarfile.TarInfo("data_batch_1")
    member.size = 2**31
    (tmp_path / "a.tar").write_bytes(member.tobuf())
    with pytest.raises(InputError, match="unpacks to more than"):
        CIFAR10.read(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "many.tar", "w") as archive:
        for number in range(2000):
            archive.addfile(tarfile.TarInfo(f"{number}"))
    with pytest.raises(InputError, match="more than 1,000 members"):
        CIFAR10.read(tmp_path / "many.tar")
    source = fake_cifar.archive(tmp_path / "a.tar.gz", "binary")
    unpacked = gzip.decompress(source.read_bytes())
    monkeypatch.setattr(archives, "_MAX_UNPACKED", len(unpacked))
    CIFAR10.read(source)
    source.write_bytes(gzip.compress(unpacked + bytes(4096)))  # what follows the end
    with pytest.raises(InputError, match="unpacks to more than"):
        CIFAR10.read(source)


def _small_archive(layout: str, compression: str) -> bytes:
    """Return an archive of one image a batch, so small that each of its bytes can be damaged."""
    rows = {f"data_batch_{batch}": np.full((1, 3072), batch, np.uint8) for batch in range(1, 6)}
    rows["test_batch"] = np.full((1, 3072), 9, np.uint8)
    if layout == "binary":
        files = {f"{name}.bin": b"\1" + pixels.tobytes() for name, pixels in rows.items()}
        files["batches.meta.txt"] = b"cat\ndog\n"
    else:
        files = {name: pickle.dumps({b"data": row, b"labels": [1]}, 2) for name, row in rows.items()}
        files["batches.meta"] = pickle.dumps({b"label_names": [b"cat", b"dog"]}, 2)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _same(one: ImageData, other: ImageData) -> bool:
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return all(np.array_equal(first, second) for first, second in pairs)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_each_truncation_and_flipped_byte_of_an_archive_is_refused_or_gives_the_same_data(
    tmp_path, layout, compression
):
    whole = _small_archive(layout, compression)
    path = tmp_path / "a.tar"
    path.write_bytes(whole)
    data = CIFAR10.read(path)
    cut = [whole[:size] for size in range(len(whole))]
    flipped = [whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :] for at in range(len(whole))]
    refused = 0
    for damaged in (*cut, *flipped):
        path.write_bytes(damaged)
        found, line = value_or_line(lambda: CIFAR10.read(path))
        assert "a.tar" in line if found is None else _same(found, data)
        refused += found is None
    # What is read all the same: the time, system and name that a compressor noted, or padding behind its end.
    assert refused > 0.95 * (len(cut) + len(flipped))


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
def test_each_truncation_and_flipped_byte_of_a_pickle_is_refused_or_gives_images(tmp_path, fake_cifar, name):
    whole = fake_cifar.files("python")[name]
    folder = fake_cifar.folder(tmp_path, "python")
    places = [*range(min(len(whole), 200)), *range(max(200, len(whole) - 100), len(whole))]
    for at in places:
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]):
            (folder / name).write_bytes(damaged)
            data, line = value_or_line(lambda: CIFAR10.read(folder))
            if data is None:
                assert name in line
            else:
                assert data.train_images.shape == fake_cifar.train_images.shape
                assert data.train_labels.max() < len(data.classes)


def _refused(capsys, archive, folder) -> str:
    """Prepare ``archive`` into ``folder``; returns the one line that refuses it."""
    code = cli.main(["data", "prepare", "--archive", str(archive), "--data-dir", str(folder)])
    said = capsys.readouterr().err
    assert code == 2
    assert said.count("\n") == 1 and str(archive) in said
    assert not folder.exists()
    return said


def test_an_archive_with_a_flipped_byte_is_refused(fake_cifar, tmp_path, capsys):
    source = tmp_path / "a.tar.gz"
    with gzip.open(source, "wb", compresslevel=0) as file:  # stored as it is: any byte decodes
        file.write(gzip.decompress(fake_cifar.archive(tmp_path / "b.tar.gz", "binary").read_bytes()))
    content = bytearray(source.read_bytes())
    row_of_pixels = fake_cifar.train_images[0, 0, :, 0].tobytes()
    content[content.index(row_of_pixels)] ^= 1
    source.write_bytes(content)
    assert "CRC check failed" in _refused(capsys, source, tmp_path / "data")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_archive_that_was_cut_after_its_last_member_is_refused(fake_cifar, tmp_path, capsys, layout):
    whole = fake_cifar.archive(tmp_path / "a.tar.gz", layout).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for size in (len(whole) - 1, len(whole) - 8, len(whole) - 9):  # within gzip's trailer and before it
        cut.write_bytes(whole[:size])
        assert "damaged or no tar archive" in _refused(capsys, cut, tmp_path / "data")
    unpacked = gzip.decompress(whole)
    end = len(unpacked.rstrip(b"\0")) + 511 & -512
    for size in (end, end + 511):
        (tmp_path / "cut.tar").write_bytes(unpacked[:size])
        (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(unpacked[:size]))
        for archive in (tmp_path / "cut.tar", cut):
            assert "without a tar archive's end" in _refused(capsys, archive, tmp_path / "data")


def test_a_batch_file_that_cannot_be_read_is_named(fake_cifar, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    folder = fake_cifar.folder(tmp_path, "binary")
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)  # root may read everything
    with pytest.raises(InputError, match="batches.meta.txt cannot be read: Permission denied"):
        CIFAR10.read(folder)


def test_a_repeated_and_a_sixth_batch_are_refused(fake_cifar, make_tar, tmp_path):
    files = {f"a/{name}": content for name, content in fake_cifar.files("binary").items()}
    files["b/data_batch_2.bin"] = files["a/data_batch_2.bin"]
    with pytest.raises(InputError, match="data_batch_2.bin twice"):
        CIFAR10.read(make_tar(tmp_path / "a.tar.gz", files))
    with pytest.raises(InputError, match="unexpected data_batch_6.bin"):
        CIFAR10.read(fake_cifar.folder(tmp_path, "binary", **{"data_batch_6.bin": b""}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_file_is_named(fake_cifar, tmp_path, layout):
    for number, name in enumerate(fake_cifar.files(layout)):
        folder = fake_cifar.folder(tmp_path / str(number), layout, **{name: None})
        with pytest.raises(InputError, match=f"lacks {name}"):
            CIFAR10.read(folder)


_PLANES = np.zeros((20, 3072), np.uint8)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"", "is empty"),
        (b"\0" * 3072, "truncated"),
        (b"\0" * 3073, "has only 1 image,"),
        (b"\x0a" * 3073, "labels 10"),
        ({b"data": _PLANES}, "no entry 'labels'"),
        ({b"labels": [0] * 20}, "no entry 'data'"),
        ({b"data": _PLANES, b"labels": [0] * 19}, "not as many integers"),
        ({b"data": _PLANES, b"labels": [0.5] * 20}, "not as many integers"),
        ({b"data": _PLANES, b"labels": [-1] * 20}, "labels -1"),
        ({b"data": _PLANES[:, :100], b"labels": [0] * 20}, "rows of 100 bytes"),
        ({b"data": _PLANES.astype(float), b"labels": [0] * 20}, "no uint8 array"),
        ({b"data": [1, 2], b"labels": [0] * 2}, "no uint8 array"),
        ({b"data": _PLANES[:0], b"labels": []}, "is empty"),
        ([1, 2], "instead of a dict"),
    ],
)
def test_a_damaged_batch_is_named(fake_cifar, tmp_path, batch, message):
    if isinstance(batch, bytes):
        folder = fake_cifar.folder(tmp_path, "binary", **{"data_batch_4.bin": batch})
    else:
        folder = fake_cifar.folder(tmp_path, "python", data_batch_4=pickle.dumps(batch))
    with pytest.raises(InputError, match=f"data_batch_4.*{message}"):
        CIFAR10.read(folder)


def test_class_names_must_exist_and_differ(fake_cifar, tmp_path):
    for number, text in enumerate([b"", b"cat\ncat\n", "k\u00e4fer\n".encode()]):
        folder = fake_cifar.folder(tmp_path / str(number), "binary", **{"batches.meta.txt": text})
        with pytest.raises(InputError, match="batches.meta.txt"):
            CIFAR10.read(folder)


def test_other_sources_are_refused_with_a_hint(tmp_path, make_tar):
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "folder").mkdir()
    make_tar(tmp_path / "other.tar.gz", {"readme": b"x"})
    for name in ("text", "folder", "other.tar.gz", "nothing"):
        with pytest.raises(InputError) as caught:
            CIFAR10.read(tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folders_checksum_depends_only_on_its_batches(fake_cifar, tmp_path, layout):
    first = fake_cifar.folder(tmp_path / "1", layout)
    second = fake_cifar.folder(tmp_path / "2", layout, readme=b"other")
    assert CIFAR10.sha256(first) == CIFAR10.sha256(second) == CIFAR10.sha256(tmp_path / "2")
    name = sorted(fake_cifar.files(layout))[1]
    (second / name).write_bytes((second / name).read_bytes()[:-1] + b"?")
    assert CIFAR10.sha256(first) != CIFAR10.sha256(second)


def test_a_long_header_is_refused_before_it_is_read(tmp_path):
    """By a process that may take no more than 1.5 GB."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2**29
    with gzip.open(tmp_path / "a.tar.gz", "wb", 1) as archive:
        archive.write(header.tobuf())
        for _ in range(2**9):
            archive.write(bytes(2**20))
    assert (tmp_path / "a.tar.gz").stat().st_size < 3e6
    code = (
        "import resource, sys; from pathlib import Path; from labkit.data.cifar10.archives import CIFAR10\n"
        "from labkit.errors import InputError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000,) * 2)\n"
        "try:\n    CIFAR10.read(Path(sys.argv[1]))\n"
        "except InputError as error:\n    print(error)\n"
    )
    command = python_command("-c", code, tmp_path / "a.tar.gz")
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "a part of it has 512 MB" in ended.stdout, ended.stderr
