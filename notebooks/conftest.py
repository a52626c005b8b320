"""What ``pytest --nbval-lax notebooks/`` runs: notebooks, not what papermill wrote, in bounded time."""

import json
import re
import time
from pathlib import Path

import pytest

SECONDS_A_CELL = 600
# The first cell says how many minutes a notebook takes on two idle cores. On a busy machine it takes longer,
# also in make test, which runs two at a time; but not over four times as long.
SLACK = 4
MINUTES = re.compile(r"[Aa]bout (\w+) minutes? on two CPU cores")
IN_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
# Its cells claim nothing of what so many steps reach: a few of them show as much, that each cell runs.
SHORTER = {"train.ipynb": ("train_steps: int = 600 ", "train_steps: int = 30 ")}

started: dict[Path, float] = {}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the notebooks that papermill wrote; a file that is named on the command line is run."""
    if collection_path.suffix != ".ipynb":
        return None
    try:
        metadata = json.loads(collection_path.read_text(encoding="utf-8"))["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nbval says what is wrong with it
    return True if "papermill" in metadata else None


def minutes_of(notebook: Path) -> int | None:
    """Return the minutes that the first cell of a notebook names."""
    first = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    said = MINUTES.search(first)
    return None if said is None else IN_WORDS.get(said[1]) or int(said[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give cells more time than the tests have. The longest notebooks begin first: two run at a time."""
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.timeout(SECONDS_A_CELL))
            if item.path.name in SHORTER and SHORTER[item.path.name][0] in item.cell.source:
                item.cell.source = item.cell.source.replace(*SHORTER[item.path.name])
    minutes = {item.path: minutes_of(item.path) or 0 for item in items if item.path.suffix == ".ipynb"}
    items.sort(key=lambda item: -minutes.get(item.path, 0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when the first cell of a notebook begins."""
    started.setdefault(item.path, time.monotonic())


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Fail a notebook that took much longer than its first cell says."""
    if item.path.suffix != ".ipynb" or (nextitem is not None and nextitem.path == item.path):
        return
    minutes = minutes_of(item.path)
    took = (time.monotonic() - started[item.path]) / 60
    if minutes is not None and took > SLACK * minutes:
        pytest.fail(f"{item.path.name} took {took:.1f} minutes; its first cell says {minutes}")
