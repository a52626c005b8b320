"""``shapes`` with few images, for tests that need a prepared data set and not much of it."""

import functools
from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare

__all__ = ["prepare_tiny"]


def prepare_tiny(folder: Path, seed: int = 0) -> Manifest:
    """Prepare it under ``folder``: 180 train, 20 validation and 40 test images."""
    few = functools.partial(shapes.generate, train_count=200, test_count=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", few)
        return prepare("shapes", folder, seed=seed).manifest
