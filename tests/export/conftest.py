"""The embedded data set, prepared once for the tests of this folder."""

import pytest

from labkit.data.prepare import prepare


@pytest.fixture(scope="session")
def shapes(session_home):
    return prepare("shapes", session_home / "data").manifest
