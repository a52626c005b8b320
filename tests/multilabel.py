"""``shapes_multilabel`` and ``shapes_size``, small, for the tests of their labels."""

import functools
from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.manifest import Manifest
from labkit.data.prepare import prepare

TRAIN, VALIDATION, TEST = 270, 30, 70


def prepare_small(folder: Path, dataset: str = "shapes_multilabel") -> Manifest:
    """Prepare ``dataset`` under ``folder``, in several shards: 270 train, 30 validation, 70 test images."""
    small = functools.partial(shapes.generate, train_count=TRAIN + VALIDATION, test_count=TEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", small)
        return prepare(dataset, folder, examples_per_shard=100).manifest
