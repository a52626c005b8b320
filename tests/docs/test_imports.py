"""No module imports itself by way of others, type checking and functions included."""

from tests.house import circles


def test_there_is_no_circle_of_imports() -> None:
    assert circles() == []
