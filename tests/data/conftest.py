"""A small CIFAR-10 in both published layouts, data sets made from it, and folders of small pictures."""

import io
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labkit.data.manifest import Manifest, load_manifest
from labkit.data.prepare import prepare
from tests.jpegs import prepare_jpegs

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PER_BATCH = 20
TEST_COUNT = 33
EXAMPLES_PER_SHARD = 17


@dataclass(frozen=True)
class FakeCifar:
    """Random images in the shape of CIFAR-10: five training batches and a test batch."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def batches(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Rows of colour planes uint8 [n, 3072] and labels of every batch."""
        parts = {f"data_batch_{i + 1}": slice(i * PER_BATCH, (i + 1) * PER_BATCH) for i in range(5)}
        split = {name: (self.train_images[rows], self.train_labels[rows]) for name, rows in parts.items()}
        split["test_batch"] = self.test_images, self.test_labels
        return {n: (x.transpose(0, 3, 1, 2).reshape(len(x), -1), y) for n, (x, y) in split.items()}

    def files(self, layout: str) -> dict[str, bytes]:
        """Every file of a layout, ``python`` or ``binary``, with its content."""
        if layout == "binary":
            files = {
                f"{name}.bin": np.concatenate([y[:, None].astype(np.uint8), x], axis=1).tobytes()
                for name, (x, y) in self.batches().items()
            }
            return files | {"batches.meta.txt": ("\n".join(CLASSES) + "\n\n").encode()}
        files = {
            name: pickle.dumps({b"data": x, b"labels": y.tolist(), b"batch_label": name.encode()}, 2)
            for name, (x, y) in self.batches().items()
        }
        return files | {"batches.meta": pickle.dumps({b"label_names": [c.encode() for c in CLASSES]}, 2)}

    def folder(self, parent: Path, layout: str, **replaced: bytes | None) -> Path:
        """Write a layout's folder under `parent`; `replaced` maps file names to other content or None."""
        folder = parent / {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[layout]
        folder.mkdir(parents=True)
        for name, content in (self.files(layout) | replaced).items():
            if content is not None:
                (folder / name).write_bytes(content)
        return folder

    def archive(self, path: Path, layout: str) -> Path:
        """Write a layout's .tar.gz to `path`."""
        inner = {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[layout]
        folder = tarfile.TarInfo(inner)
        folder.type = tarfile.DIRTYPE
        files = {f"{inner}/{name}": data for name, data in self.files(layout).items()}
        return write_tar(path, files, (folder,))


def write_tar(path: Path, files: dict[str, bytes], extra: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    """Write a .tar.gz with `files`, followed by empty `members`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return path


def fake_cifar_10() -> FakeCifar:
    generator = np.random.default_rng(7)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        images = generator.integers(0, 256, (count, 32, 32, 3), np.uint8)
        return images, generator.permutation(np.arange(count) % 10).astype(np.int32)

    return FakeCifar(*draw(5 * PER_BATCH), *draw(TEST_COUNT))


@pytest.fixture(scope="session")
def fake_cifar() -> FakeCifar:
    """Return the small data set; nothing is written."""
    return fake_cifar_10()


@pytest.fixture(scope="session")
def make_tar():
    """Return :func:`write_tar`."""
    return write_tar


@pytest.fixture(scope="session")
def prepared(fake_cifar: FakeCifar, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return the small data set, prepared: 87 train, 13 validation, 33 test examples. Read only."""
    data_dir = tmp_path_factory.mktemp("data")
    archive = fake_cifar.archive(data_dir / "source" / "cifar.tar.gz", "python")
    return prepare(
        "cifar10", data_dir, archive=archive, validation_size=13, examples_per_shard=EXAMPLES_PER_SHARD
    ).manifest


@pytest.fixture
def copy(prepared: Manifest, tmp_path: Path) -> Manifest:
    """A copy of the small data set below ``data``, that a test may change."""
    shutil.copytree(prepared.directory, tmp_path / "data" / "cifar10")
    return load_manifest(tmp_path / "data", "cifar10")


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """180 train, 20 validation and 40 test images of 72 pixels, stored as JPEGs. Read only."""
    return prepare_jpegs(tmp_path_factory.mktemp("jpegs"), 72)


# ---- pictures ----------------------------------------------------------------------------------------------

PER_CLASS = 12


def pixels_of(number: int, size: int = 10) -> np.ndarray:
    """Return a random picture, uint8 [size, size, 3]; each number has its own."""
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder with two classes of twelve pictures of 10 × 10 each."""
    return write_classes(tmp_path / "pets", ("cat", "dog"))


def write_classes(root: Path, classes: tuple[str, ...], count: int = PER_CLASS, first: int = 0) -> Path:
    """Write PNG pictures, each another, into a folder for each class; return ``root``."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(pixels_of(first + label * count + number))
            image.save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def make_classes() -> Callable[..., Path]:
    """Return :func:`write_classes`."""
    return write_classes


@pytest.fixture(scope="session")
def make_pixels() -> Callable[..., np.ndarray]:
    """Return :func:`pixels_of`."""
    return pixels_of
