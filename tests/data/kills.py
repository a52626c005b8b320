"""Calls that end in the middle, as if the process had been killed, and what they leave."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["counted_calls", "file_states", "killed_at"]


class _Killed(BaseException):
    """The end of the process: no handler of an error catches it."""


@contextmanager
def _patched(holder: Any, name: str, before: Callable[[int], None]) -> Iterator[list[Any]]:
    real, calls = getattr(holder, name), []

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        before(len(calls))
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, call)
        yield calls


@contextmanager
def counted_calls(name: str, holder: Any = os) -> Iterator[list[Any]]:
    """Collect the calls of os.``name``, or of another holder's function, in the block."""
    with _patched(holder, name, lambda number: None) as calls:
        yield calls


@contextmanager
def killed_at(point: int, name: str, holder: Any = os) -> Iterator[None]:
    """End the block at the ``point``-th call of os.``name``, or of another holder's, before it is made."""

    def end(number: int) -> None:
        if number == point:
            raise _Killed

    with pytest.raises(_Killed), _patched(holder, name, end):
        yield


def file_states(directory: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every file; rewriting a file changes both."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()}
