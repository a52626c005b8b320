"""Fixtures of the loop's tests."""

from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.prepare import prepare
from tests.training.small import TEST, TRAIN, VALIDATION


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """A folder with a few of the drawn images."""
    few, folder = (
        shapes.generate(train_count=TRAIN + VALIDATION, test_count=TEST),
        tmp_path_factory.mktemp("few"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", lambda *given, **named: few)
        prepare("shapes", folder, validation_size=VALIDATION)
    return folder
