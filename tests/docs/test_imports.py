"""No module imports itself by way of others, type checking and functions included; the picture shows all."""

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
