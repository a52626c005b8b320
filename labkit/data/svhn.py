"""Read the cropped digits of SVHN from the files that its authors publish: MATLAB's format 5.

They are described at http://ufldl.stanford.edu/housenumbers/ (format 2).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.data.manifest import file_sha256
from labkit.data.subset import ImageData
from labkit.errors import InputError, require_extra, short

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
