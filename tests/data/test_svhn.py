"""SVHN comes from the two files of its authors; what is damaged or of another shape is refused."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from labkit.data.prepare import prepare
from labkit.data.shards import load_split
from labkit.errors import InputError

RNG = np.random.default_rng(3)
IMAGES = {name: RNG.integers(0, 256, (n, 32, 32, 3), np.uint8) for name, n in (("train", 60), ("test", 20))}
LABELS = {name: np.arange(len(images)) % 10 + 1 for name, images in IMAGES.items()}


def _write(folder: Path) -> Path:
    folder.mkdir()
    for name, images in IMAGES.items():
        _save(folder, name, images, LABELS[name])
    return folder


def _save(folder: Path, name: str, images: np.ndarray, labels: np.ndarray) -> None:
    arrays = {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None].astype(np.uint8)}
    savemat(folder / f"{name}_32x32.mat", arrays, do_compression=True)


def test_the_ten_of_the_files_is_the_digit_zero(tmp_path):
    made = prepare("svhn", tmp_path / "data", archive=_write(tmp_path / "files")).manifest
    assert made.classes == tuple("0123456789") and made.image_shape == (32, 32, 3)
    images, labels = load_split(made, "test")
    assert (images == IMAGES["test"]).all() and (labels == LABELS["test"] % 10).all()
    again = prepare("svhn", tmp_path / "data", archive=tmp_path / "files")
    assert not again.did_work and again.manifest == made


def test_what_is_damaged_missing_or_of_another_shape_is_refused(tmp_path):
    folder = _write(tmp_path / "files")
    test = folder / "test_32x32.mat"
    whole = test.read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], whole[:130], b"text", b""):
        test.write_bytes(content)
        _refused(tmp_path, "test_32x32.mat is damaged, or no file of SVHN", folder)
    _save(folder, "test", IMAGES["test"][:, :30], LABELS["test"])
    _refused(tmp_path, r"X, uint8 \[30, 32, 3, 20\], and y \[20, 1\]; SVHN has uint8 \[32", folder)
    _save(folder, "test", IMAGES["test"], LABELS["test"] - 1)
    _refused(tmp_path, "labels from other numbers than 1 to 10", folder)
    test.unlink()
    _refused(tmp_path, "has no test_32x32.mat; give the folder with SVHN's train_32x32.mat and", folder)
    _refused(tmp_path, "is not a folder; give the folder with SVHN's", folder / "train_32x32.mat")


def _refused(tmp_path: Path, message: str, archive: Path) -> None:
    with pytest.raises(InputError, match=message) as refused:
        prepare("svhn", tmp_path / "new", archive=archive)
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()
