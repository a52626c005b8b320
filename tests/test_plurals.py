"""Counts in sentences."""

import pytest

from labkit.plurals import counted


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (0, "checkpoint", "0 checkpoints"),
        (1, "checkpoint", "1 checkpoint"),
        (2, "asynchronous worker", "2 asynchronous workers"),
        (12345, "damaged line", "12,345 damaged lines"),
    ],
)
def test_number_and_noun_agree(number, noun, expected):
    assert counted(number, noun) == expected
