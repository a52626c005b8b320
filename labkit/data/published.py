"""Read data sets in the files that their authors publish: MNIST and Fashion-MNIST, also from Keras's
``mnist.npz``, and the cropped digits of SVHN.

The formats are described at http://yann.lecun.com/exdb/mnist/ and http://ufldl.stanford.edu/housenumbers/
(format 2, in MATLAB's format 5).
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.examples.arrays import parts_of_npz
from labkit.data.manifest import file_sha256
from labkit.data.subset import ImageData
from labkit.errors import InputError, reason_of, require_extra, short

_PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
_MAX_UNPACKED = 2**27  # the largest of the files has 47 MB
_SIDE = 28


@dataclass(frozen=True)
class GreyForm:
    """A data set of 28 × 28 grey images; see ``labkit.data.cifar10.archives.Form``.

    Args:
        title: the data set, as its authors call it.
        downloads: the names of the files that are downloaded.
        classes: names of the classes.
    """

    title: str
    downloads: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def way_out(self) -> str:
        """What to give instead of what can't be read."""
        return f"give an .npz file with x_train and so on, or the folder with {self.title}'s four idx files"

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, or of the names and contents of a folder's four files."""
        if not path.is_dir():
            return file_sha256(path)
        lines = [f"{part} {file_sha256(file)}\n" for part, file in self._files(path).items()]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def read(self, path: Path) -> ImageData:
        """Return the images with three equal channels, and their labels.

        Raises InputError where a file is missing, damaged, or of another data set.
        """
        if path.is_dir():
            arrays = [_read_idx(file, _rank(part)) for part, file in self._files(path).items()]
        else:
            parts = parts_of_npz(path)
            if parts.keys() != {"train", "test"}:
                raise InputError(f"{path} has the splits {', '.join(parts)}, not train, test; {self.way_out}")
            arrays = []
            for part in parts.values():
                grey = part.images.shape[3] == 1
                arrays += [part.images[..., 0] if grey else part.images, part.labels]
        for images, labels in (arrays[:2], arrays[2:]):
            if images.shape[1:] != (_SIDE, _SIDE) or labels.shape != images.shape[:1] or not labels.size:
                raise InputError(
                    f"{path} has images {list(images.shape)} and labels {list(labels.shape)}; "
                    f"{self.title} has [n, {_SIDE}, {_SIDE}] and [n]"
                )
            if labels.max() >= len(self.classes):
                most = len(self.classes) - 1
                raise InputError(f"{path} has labels up to {labels.max()}; {self.title} has 0 to {most}")
        train, train_labels, test, test_labels = arrays
        return ImageData(
            np.repeat(train[..., None], 3, axis=3),
            train_labels.astype(np.int32),
            np.repeat(test[..., None], 3, axis=3),
            test_labels.astype(np.int32),
            self.classes,
            layout="idx" if path.is_dir() else "npz",
        )

    def _files(self, folder: Path) -> dict[str, Path]:
        """Return the four files. Raises InputError where one is missing."""
        found = {}
        for part in _PARTS:
            names = [f"{part}{dot}idx{_rank(part)}-ubyte{packed}" for dot in "-." for packed in ("", ".gz")]
            found[part] = next((file for name in names if (file := folder / name).is_file()), folder)
            if found[part] == folder:
                raise InputError(f"{folder} has no {names[1]}; {self.way_out}")
        return found


def _rank(part: str) -> int:
    return 3 if part.endswith("images") else 1


def _read_idx(path: Path, rank: int) -> np.ndarray:
    """Return the bytes of a file, packed or not, as uint8 of ``rank`` dimensions."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as file:
            content = file.read(_MAX_UNPACKED)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}; get it again") from None
    start = 4 + 4 * rank
    shape = np.frombuffer(content[4:start].ljust(4 * rank, b"\0"), ">u4").tolist()
    if content[:4] != bytes((0, 0, 8, rank)) or len(content) - start != np.prod(shape, dtype=object):
        raise InputError(f"{path} is damaged, or no file of {rank} dimensions; get it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


_GOODS = (
    *("T-shirt or top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
MNIST = GreyForm("MNIST", ("mnist.npz",), tuple("0123456789"))
FASHION_MNIST = GreyForm(
    "Fashion-MNIST",
    tuple(f"{part}-idx{_rank(part)}-ubyte.gz" for part in _PARTS),
    _GOODS,
)


_SHAPE = (32, 32, 3)


@dataclass(frozen=True)
class SvhnForm:
    """A data set of house numbers' digits, 32 × 32 in colour; see ``labkit.data.cifar10.archives.Form``."""

    title: str = "SVHN"
    downloads: tuple[str, ...] = ("train_32x32.mat", "test_32x32.mat")
    classes: tuple[str, ...] = tuple("0123456789")

    @property
    def way_out(self) -> str:
        """What to give instead of what can't be read."""
        return f"give the folder with {self.title}'s {' and '.join(self.downloads)}"

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, or of the names and contents of a folder's two files."""
        if not path.is_dir():
            return file_sha256(path)
        lines = [f"{file.name} {file_sha256(file)}\n" for file in self._files(path)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def read(self, path: Path) -> ImageData:
        """Return the images and their digits; the file says 10 for a zero.

        Raises InputError where a file is missing, damaged, or of another data set, and without SciPy.
        """
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; {self.way_out}")
        require_extra("app", ("scipy",), "--dataset svhn")
        train, test = (self._split(file) for file in self._files(path))
        return ImageData(*train, *test, self.classes, layout="matlab")

    def _split(self, file: Path) -> tuple[np.ndarray, np.ndarray]:
        from scipy.io import loadmat

        try:
            arrays = loadmat(file, variable_names=["X", "y"])
            images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"])
        except Exception as error:  # SciPy raises a dozen kinds for damaged files
            raise InputError(f"{file} is damaged, or no file of {self.title}: {short(str(error))}") from None
        if images.dtype != np.uint8 or images.shape[:-1] != _SHAPE or labels.shape != (images.shape[-1], 1):
            raise InputError(
                f"{file} has X, {images.dtype} {list(images.shape)}, and y {list(labels.shape)}; "
                f"{self.title} has uint8 [32, 32, 3, n] and [n, 1]"
            )
        if not labels.size or not np.isin(labels, np.arange(1, 11)).all():
            raise InputError(f"{file} has labels from other numbers than 1 to 10; get it again")
        return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels[:, 0].astype(np.int32) % 10

    def _files(self, folder: Path) -> list[Path]:
        files = [folder / name for name in self.downloads]
        for file in files:
            if not file.is_file():
                raise InputError(f"{folder} has no {file.name}; {self.way_out}")
        return files


SVHN = SvhnForm()
