"""``shapes`` with few images, for tests that need a prepared data set and not much of it."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare

__all__ = ["prepare_tiny", "tiny_home"]


def prepare_tiny(folder: Path, seed: int = 0) -> Manifest:
    """Prepare it under ``folder``: 180 train, 20 validation and 40 test images."""
    few = functools.partial(shapes.generate, train_count=200, test_count=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", few)
        return prepare("shapes", folder, seed=seed).manifest


def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a home with few images labkit's; a fixture of modules that start commands."""
    folder = tmp_path_factory.mktemp("home")
    prepare_tiny(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(folder))
        yield folder
