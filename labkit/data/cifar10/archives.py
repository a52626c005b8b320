"""Read CIFAR-10 in either published layout, from the archive or from the folder extracted from it.

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
_TRAIN_BATCHES = 5  # both layouts: data_batch_1 … data_batch_5
_FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
_PYTHON_NAME = re.compile(r"data_batch_\d+|test_batch|batches\.meta")
_BINARY_NAME = re.compile(r"data_batch_\d+\.bin|test_batch\.bin|batches\.meta\.txt")
_MAX_UNPACKED = 2**30  # the published archives unpack to 186 MB
_MAX_READ = 2**27  # at once; a batch has 31 MB
_MAX_MEMBERS = 1000  # the published archives have 9


def read_archive(path: str | Path) -> ImageData:
    """Read a ``.tar.gz`` of either layout, the folder extracted from one, or that folder's parent.

    Raises:
        InputError: `path` is none of these, is truncated or damaged, holds links, devices or names that lead
            elsewhere, misses or repeats a batch, or has a batch of a wrong size, label or type; the file is
            named.
    """
    path = Path(path)
    files = _folder_files(path) if os.path.isdir(path) else _archive_files(path)
    python = {name: data for name, data in files.items() if _PYTHON_NAME.fullmatch(name)}
    if python:
        return _assemble(path, python, "python", "", _python_batch, "batches.meta", _python_classes)
    if files:
        return _assemble(path, files, "binary", ".bin", _binary_batch, "batches.meta.txt", _binary_classes)
    raise InputError(
        f"{path} contains no CIFAR-10 batches; give cifar-10-python.tar.gz, cifar-10-binary.tar.gz "
        "or the folder extracted from one of them"
    )


def source_sha256(path: str | Path) -> str:
    """Return the SHA-256 of an archive, or of the names and contents of a folder's batch files."""
    path = Path(path)
    if not path.is_dir():
        return file_sha256(path)
    digest = hashlib.sha256()
    for file in _batch_paths(path):
        digest.update(f"{file.name} {file_sha256(file)}\n".encode())
    return digest.hexdigest()


def _is_batch_file(name: str) -> bool:
    return bool(_PYTHON_NAME.fullmatch(name) or _BINARY_NAME.fullmatch(name))


def _batch_paths(folder: Path) -> list[Path]:
    inner = next((folder / name for name in _FOLDERS if (folder / name).is_dir()), folder)
    try:
        return sorted(file for file in inner.iterdir() if file.is_file() and _is_batch_file(file.name))
    except OSError as error:
        raise InputError(f"folder {inner} cannot be read: {error.strerror}") from None


def _folder_files(folder: Path) -> dict[str, bytes]:
    files = {}
    for file in _batch_paths(folder):
        try:
            if file.stat().st_size > _MAX_UNPACKED:
                raise InputError(f"{file} is larger than any CIFAR-10 batch")
            files[file.name] = file.read_bytes()
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}; give another --archive") from None
    return files


def _archive_files(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe may never end
            raise InputError(f"{path} is neither a file nor a folder; give a CIFAR-10 .tar.gz or its folder")
        with _opened(path) as stream, _tar(path, stream) as archive:
            for member in _safe_members(path, archive):
                name = PurePosixPath(member.name).name
                if not _is_batch_file(name):
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
    layout: str,
    suffix: str,
    read_batch: Callable[[str, bytes], tuple[np.ndarray, np.ndarray]],
    meta_name: str,
    read_classes: Callable[[str, bytes], tuple[str, ...]],
) -> ImageData:
    train_names = [f"data_batch_{number}{suffix}" for number in range(1, _TRAIN_BATCHES + 1)]
    test_name = f"test_batch{suffix}"
    expected = [*train_names, test_name, meta_name]
    missing = [name for name in expected if name not in files]
    unknown = sorted(set(files) - set(expected))
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"contains an unexpected {', '.join(unknown)}"
        raise InputError(f"{path} {wrong}; get the published archive again")
    classes = read_classes(f"{path}: {meta_name}", files[meta_name])
    batches = {}
    for name in [*train_names, test_name]:
        where = f"{path}: {name}"
        images, labels = read_batch(where, files.pop(name))
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
        layout=layout,
    )


def _to_images(planes: np.ndarray) -> np.ndarray:
    """Convert rows of colour planes, uint8 [n, 3072], to images [n, 32, 32, 3]."""
    height, width, channels = IMAGE_SHAPE
    return np.ascontiguousarray(planes.reshape(-1, channels, height, width).transpose(0, 2, 3, 1))


def _binary_batch(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    if len(content) % (1 + _PIXELS):
        raise InputError(f"{where} has {len(content)} bytes, not a multiple of {1 + _PIXELS}: truncated?")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _PIXELS)
    return _to_images(records[:, 1:]), records[:, 0]


def _binary_classes(where: str, content: bytes) -> tuple[str, ...]:
    return _class_names(where, [line.strip() for line in content.split(b"\n") if line.strip()])


def _python_batch(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    batch = load_pickle(where, content)
    planes, labels = _entry(where, batch, "data"), np.asarray(_entry(where, batch, "labels"))
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.ndim != 2:
        raise InputError(f"{where} has no uint8 array [n, {_PIXELS}] under 'data'")
    if planes.shape[1] != _PIXELS:
        raise InputError(f"{where} has rows of {planes.shape[1]} bytes instead of {_PIXELS}")
    if labels.shape != (len(planes),) or (labels.size and labels.dtype.kind not in "iu"):
        raise InputError(f"{where} has {counted(len(planes), 'image')}, its labels are not as many integers")
    return _to_images(planes), labels


def _python_classes(where: str, content: bytes) -> tuple[str, ...]:
    names = _entry(where, load_pickle(where, content), "label_names")
    if not isinstance(names, list):
        raise InputError(f"{where} has no list under 'label_names'")
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
