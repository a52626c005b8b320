"""What all trainings of this folder need."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def shapes_at_home(shapes):
    """The embedded data set, where they look for it."""
