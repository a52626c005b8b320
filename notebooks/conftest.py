"""What ``pytest --nbval-lax notebooks/`` runs: notebooks, not what papermill made of them."""

import json
from pathlib import Path

import pytest

SECONDS_A_CELL = 1800  # training takes about two minutes on two idle cores


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the notebooks that papermill wrote; a file that is named on the command line is run."""
    if collection_path.suffix != ".ipynb":
        return None
    try:
        metadata = json.loads(collection_path.read_text(encoding="utf-8"))["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nbval says what is wrong with it
    return True if "papermill" in metadata else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give cells more time than the tests have."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.timeout(SECONDS_A_CELL))
