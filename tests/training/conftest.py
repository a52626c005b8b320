"""Fixtures of the loop's tests."""

from pathlib import Path

import pytest

from labkit.data import shapes
from labkit.data.prepare import prepare
from tests.training.small import TEST, TRAIN, VALIDATION, train


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> Path:
    """A folder with a few of the drawn images."""
    few = shapes.generate(train_count=TRAIN + VALIDATION, test_count=TEST)
    folder = tmp_path_factory.mktemp("few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "generate", lambda *given, **named: few)
        prepare("shapes", folder, validation_size=VALIDATION)
    return folder


@pytest.fixture(scope="session")
def whole(data_dir, tmp_path_factory) -> Path:
    """A run without a stop and without callbacks. Not to be changed."""
    job_dir = tmp_path_factory.mktemp("loop") / "whole"
    assert train(job_dir, data_dir) == 0
    return job_dir
