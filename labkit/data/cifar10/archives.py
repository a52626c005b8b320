"""Read CIFAR-10 or CIFAR-100 in either published layout, from the archive or from its extracted folder.

Archives are read in memory and never unpacked to disk. Pickles may contain only arrays and plain values.
The layouts are described at https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from labkit.data.cifar10.pickles import load_pickle
from labkit.data.manifest import file_sha256
from labkit.data.subset import ImageData
from labkit.errors import InputError
from labkit.plurals import counted

IMAGE_SHAPE = (32, 32, 3)
_PIXELS = 32 * 32 * 3
_MAX_UNPACKED = 2**30  # the published archives unpack to 186 MB
_MAX_READ = 2**28  # at once; the largest batch, of CIFAR-100, has 155 MB
_MAX_MEMBERS = 1000  # the published archives have 9


@dataclass(frozen=True)
class Form:
    """What the files of a data set are called, and where its labels are.

    Args:
        title: the data set, as its authors call it.
        archive: the beginning of its archives' names.
        folders: extracted from them.
        python, binary: the names of the files that are read of each layout.
        train, test: the batches.
        meta, binary_meta: the files with the names of the classes.
        labels, names: the entries of the labels and of the classes' names in pickles.
        label_bytes, label_at: how many bytes stand before the pixels in a binary record, and which is read.
    """

    title: str
    archive: str
    folders: tuple[str, str]
    python: re.Pattern[str]
    binary: re.Pattern[str]
    train: tuple[str, ...]
    test: str
    meta: str
    binary_meta: str
    labels: str
    names: str
    label_bytes: int
    label_at: int

    def has(self, name: str) -> bool:
        """Return whether a file of this name is read."""
        return bool(self.python.fullmatch(name) or self.binary.fullmatch(name))

    @property
    def downloads(self) -> tuple[str, ...]:
        """The archive that is downloaded."""
        return (f"{self.archive}-python.tar.gz",)

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of an archive, or of the names and contents of a folder's batch files."""
        if not path.is_dir():
            return file_sha256(path)
        digest = hashlib.sha256()
        for file in _batch_paths(path, self):
            digest.update(f"{file.name} {file_sha256(file)}\n".encode())
        return digest.hexdigest()

    def read(self, path: Path) -> ImageData:
        """Read a ``.tar.gz`` of either layout, the folder extracted from one, or that folder's parent.

        Raises:
            InputError: `path` is none of these, is truncated or damaged, holds links, devices or names that
                lead elsewhere, misses or repeats a batch, or has a batch of a wrong size, label or type; the
                file is named.
        """
        files = _folder_files(path, self) if os.path.isdir(path) else _archive_files(path, self)
        python = {name: data for name, data in files.items() if self.python.fullmatch(name)}
        if python:
            return _assemble(path, python, self, "", _python_batch, self.meta, _python_classes)
        if files:
            return _assemble(path, files, self, ".bin", _binary_batch, self.binary_meta, _binary_classes)
        raise InputError(f"{path} contains no {self.title} batches; {self.way_out}")

    @property
    def way_out(self) -> str:
        """What to give instead of what can't be read."""
        names = f"{self.archive}-python.tar.gz, {self.archive}-binary.tar.gz"
        return f"give {names} or the folder extracted from one"


CIFAR10 = Form(
    title="CIFAR-10",
    archive="cifar-10",
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    python=re.compile(r"data_batch_\d+|test_batch|batches\.meta"),
    binary=re.compile(r"data_batch_\d+\.bin|test_batch\.bin|batches\.meta\.txt"),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    binary_meta="batches.meta.txt",
    labels="labels",
    names="label_names",
    label_bytes=1,
    label_at=0,
)


def _cifar100(kind: str, label_at: int) -> Form:
    return Form(
        title="CIFAR-100",
        archive="cifar-100",
        folders=("cifar-100-python", "cifar-100-binary"),
        python=re.compile(r"train|test|meta"),
        binary=re.compile(rf"train\.bin|test\.bin|{kind}_label_names\.txt"),
        train=("train",),
        test="test",
        meta="meta",
        binary_meta=f"{kind}_label_names.txt",
        labels=f"{kind}_labels",
        names=f"{kind}_label_names",
        label_bytes=2,
        label_at=label_at,
    )


CIFAR100, CIFAR100_COARSE = _cifar100("fine", 1), _cifar100("coarse", 0)


def _batch_paths(folder: Path, form: Form) -> list[Path]:
    inner = next((folder / name for name in form.folders if (folder / name).is_dir()), folder)
    try:
        return sorted(file for file in inner.iterdir() if file.is_file() and form.has(file.name))
    except OSError as error:
        raise InputError(f"folder {inner} cannot be read: {error.strerror}") from None


def _folder_files(folder: Path, form: Form) -> dict[str, bytes]:
    files = {}
    for file in _batch_paths(folder, form):
        try:
            if file.stat().st_size > _MAX_UNPACKED:
                raise InputError(f"{file} is larger than any {form.title} batch")
            files[file.name] = file.read_bytes()
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}; give another --archive") from None
    return files


def _archive_files(path: Path, form: Form) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe may never end
            raise InputError(f"{path} is neither a file nor a folder; {form.way_out}")
        with _opened(path) as stream, _tar(path, stream) as archive:
            for member in _safe_members(path, archive):
                name = PurePosixPath(member.name).name
                if not form.has(name):
                    continue
                if name in files:
                    raise InputError(f"{path} holds {name} twice; get the published archive again")
                content = archive.extractfile(member)
                assert content is not None  # a regular file has one
                files[name] = content.read()
                if len(files[name]) != member.size:
                    raise InputError(f"{path} ends within {name}; get the archive again")
            _read_to_the_end(path, archive)
    except FileNotFoundError:
        raise InputError(f"archive {path} does not exist") from None
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(":") if str(error) else "it ends early"
        raise InputError(f"{path} is damaged or no tar archive ({reason}); get it again") from None
    return files


class _Bounded:
    """A stream for ``tarfile`` that raises InputError beyond ``_MAX_UNPACKED`` bytes, headers included."""

    def __init__(self, path: Path, stream: Any) -> None:
        self.path, self.stream = path, stream
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        left = _MAX_UNPACKED - self.tell()
        if size > max(_MAX_READ, left):
            raise self._too_large()
        if size > _MAX_READ:
            raise InputError(f"{self.path} is refused: a part of it has {size >> 20} MB")
        content = self.stream.read(min(size, left + 1))
        if len(content) > left:
            raise self._too_large()
        return content

    def seek(self, place: int) -> int:
        if place > _MAX_UNPACKED:
            raise self._too_large()
        return self.stream.seek(place)

    def _too_large(self) -> InputError:
        return InputError(f"{self.path} is refused: it unpacks to more than {_MAX_UNPACKED >> 20} MB")


def _tar(path: Path, stream: Any) -> tarfile.TarFile:
    bounded: Any = _Bounded(path, stream)  # has of a file what tarfile uses to read
    return tarfile.TarFile(fileobj=bounded)


def _opened(path: Path) -> Any:
    """Open a tar file, compressed or not."""
    with path.open("rb") as file:
        begin = file.read(6)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open)):
        if begin.startswith(magic):
            return opener(path)
    return path.open("rb")


def _safe_members(path: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield an archive's regular files.

    Raises:
        InputError: a member is a link or a device, its name points outside the archive, or there are too
            many.
    """
    for number, member in enumerate(archive):
        if number >= _MAX_MEMBERS:
            raise InputError(f"{path} is refused: it has more than {_MAX_MEMBERS:,} members")
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise InputError(f"{path} is refused: its member {member.name!r} points outside the archive")
        if member.isdir():
            continue
        if not member.isreg():
            raise InputError(
                f"{path} is refused: its member {member.name!r} is a link or a device, not a file"
            )
        yield member


def _read_to_the_end(path: Path, archive: tarfile.TarFile) -> None:
    """Read what follows the last member: the tar's end block, and behind it the compressor's checksum.

    ``tarfile`` stops at the end block, and takes a file that just ends for one that is complete.
    """
    stream = archive.fileobj
    assert stream is not None  # it is open
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise InputError(f"{path} ends after its last file, without a tar archive's end; get it again")
    while stream.read(1 << 20):
        pass


def _assemble(
    path: Path,
    files: dict[str, bytes],
    form: Form,
    suffix: str,
    read_batch: Callable[[str, bytes, Form], tuple[np.ndarray, np.ndarray]],
    meta_name: str,
    read_classes: Callable[[str, bytes, Form], tuple[str, ...]],
) -> ImageData:
    train_names = [name + suffix for name in form.train]
    test_name = form.test + suffix
    expected = [*train_names, test_name, meta_name]
    missing = [name for name in expected if name not in files]
    unknown = sorted(set(files) - set(expected))
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"contains an unexpected {', '.join(unknown)}"
        raise InputError(f"{path} {wrong}; get the published archive again")
    classes = read_classes(f"{path}: {meta_name}", files[meta_name], form)
    batches = {}
    for name in [*train_names, test_name]:
        where = f"{path}: {name}"
        images, labels = read_batch(where, files.pop(name), form)
        if not len(labels):
            raise InputError(f"{where} is empty")
        if labels.min() < 0 or labels.max() >= len(classes):
            raise InputError(
                f"{where} has labels {labels.min()} to {labels.max()}, not 0 to {len(classes) - 1}"
            )
        batches[name] = images, labels.astype(np.int32)
    sizes = {name: len(batches[name][1]) for name in train_names}
    if len(set(sizes.values())) > 1:
        shortest = min(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"{path}: {shortest} has only {counted(sizes[shortest], 'image')}, others {max(sizes.values())}"
        )
    return ImageData(
        train_images=np.concatenate([batches[name][0] for name in train_names]),
        train_labels=np.concatenate([batches[name][1] for name in train_names]),
        test_images=batches[test_name][0],
        test_labels=batches[test_name][1],
        classes=classes,
        layout="binary" if suffix else "python",
    )


def _to_images(planes: np.ndarray) -> np.ndarray:
    """Convert rows of colour planes, uint8 [n, 3072], to images [n, 32, 32, 3]."""
    height, width, channels = IMAGE_SHAPE
    return np.ascontiguousarray(planes.reshape(-1, channels, height, width).transpose(0, 2, 3, 1))


def _binary_batch(where: str, content: bytes, form: Form) -> tuple[np.ndarray, np.ndarray]:
    size = form.label_bytes + _PIXELS
    if len(content) % size:
        raise InputError(f"{where} has {len(content)} bytes, not a multiple of {size}: truncated?")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return _to_images(records[:, form.label_bytes :]), records[:, form.label_at]


def _binary_classes(where: str, content: bytes, form: Form) -> tuple[str, ...]:
    return _class_names(where, [line.strip() for line in content.split(b"\n") if line.strip()])


def _python_batch(where: str, content: bytes, form: Form) -> tuple[np.ndarray, np.ndarray]:
    batch = load_pickle(where, content)
    planes, labels = _entry(where, batch, "data"), np.asarray(_entry(where, batch, form.labels))
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.ndim != 2:
        raise InputError(f"{where} has no uint8 array [n, {_PIXELS}] under 'data'")
    if planes.shape[1] != _PIXELS:
        raise InputError(f"{where} has rows of {planes.shape[1]} bytes instead of {_PIXELS}")
    if labels.shape != (len(planes),) or (labels.size and labels.dtype.kind not in "iu"):
        raise InputError(f"{where} has {counted(len(planes), 'image')}, its labels are not as many integers")
    return _to_images(planes), labels


def _python_classes(where: str, content: bytes, form: Form) -> tuple[str, ...]:
    names = _entry(where, load_pickle(where, content), form.names)
    if not isinstance(names, list):
        raise InputError(f"{where} has no list under {form.names!r}")
    return _class_names(where, names)


def _class_names(where: str, names: list[Any]) -> tuple[str, ...]:
    try:
        classes = tuple(name.decode("ascii") if isinstance(name, bytes) else str(name) for name in names)
    except UnicodeDecodeError:
        raise InputError(f"{where} has class names that are not ASCII") from None
    if not classes or len(set(classes)) != len(classes):
        raise InputError(f"{where} has no class names, or the same name twice")
    return classes


def _entry(where: str, batch: dict[Any, Any], key: str) -> Any:
    for name in (key.encode(), key):
        if name in batch:
            return batch[name]
    raise InputError(f"{where} has no entry {key!r}")
