"""``shapes_multilabel``, small, for the tests of several labels per image."""

import functools
from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare

TRAIN, VALIDATION, TEST = 270, 30, 70


def prepare_small(folder: Path) -> Manifest:
    """Prepare it under ``folder``, in several shards: 270 train, 30 validation, 70 test images."""
    small = functools.partial(shapes.generate, train_count=TRAIN + VALIDATION, test_count=TEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", small)
        return prepare("shapes_multilabel", folder, examples_per_shard=100).manifest
