"""No module imports itself by way of others, type checking and functions included; the picture shows all."""

import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT
from tests.house import arrows, circles, floors, picture


def test_there_is_no_circle_of_imports() -> None:
    assert circles() == []


def test_the_picture_has_each_package_and_arrows_that_go_down() -> None:
    rooms = {name: floor for floor, names in enumerate(floors()) for name in names}
    packages = {path.parent.name for path in (ROOT / "labkit").glob("*/__init__.py")}
    assert rooms.keys() == {*packages, "app", "course"}
    assert all(rooms[name] <= rooms[target] for name, target in arrows(rooms))
    drawn = picture()
    kept = (ROOT / "docs" / "images" / "architecture.svg").read_text()
    for name in rooms:
        assert f">{name}</text>" in drawn and f">{name}</text>" in kept, "python -m tests.house --picture"


@pytest.mark.long
def test_the_walks_go_from_the_first_file_to_the_last() -> None:
    command = [sys.executable, "-m", "tests.walks"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=True).stdout
    walks = re.split(r"^\S.*: \d+ files\n", told, flags=re.MULTILINE)[1:]
    ends = [(walk.split()[0], walk.split()) for walk in walks]
    assert [first for first, _ in ends] == [
        "labkit/config/fields.py", "labkit/notebook/parameters.py", "labkit/data/images/walk.py",
    ]  # fmt: skip
    lasts = ("labkit/training/step.py", "app/charts/board.py", "app/views/image.py")
    assert all(last in files for last, (_, files) in zip(lasts, ends, strict=True)), told
