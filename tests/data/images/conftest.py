"""Folders of small pictures."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
