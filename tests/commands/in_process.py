"""Commands of labkit, run in the process of a test."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.commands import main as cli
from labkit.commands.train import training_of
from labkit.config import Config

__all__ = ["Answer", "answer", "config_of", "ends_well", "refused", "tree"]


class Answer(NamedTuple):
    """How a command ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


def config_of(words: Sequence[str]) -> Config:
    """Return the configuration that ``labkit train …`` trains; ``words``: from ``train`` on."""
    return training_of(words, "labkit")[0]


def tree(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of change of each file below ``folder``."""
    found = ((path, path.lstat()) for path in folder.rglob("*") if path.is_file())
    return {path: (status.st_size, status.st_mtime_ns) for path, status in found}


def answer(*arguments: object) -> Answer:
    """Run a command."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(word) for word in arguments])
        except SystemExit as end:  # of --help, and of what the parser itself refuses
            code = 0 if end.code is None else int(end.code)
    for stream in (out, err):
        stream.seek(0)
    return Answer(code, out.read(), err.read())


def refused(*arguments: object) -> str:
    """Run a command that ends with 2 and one line. Returns the line, without ``labkit: error:``."""
    code, out, err = answer(*arguments)
    assert (code, out) == (2, ""), (code, out, err)
    [line] = err.splitlines()
    assert line.startswith("labkit: error: "), line
    return line.removeprefix("labkit: error: ")


def ends_well(*arguments: str) -> int:
    """Run a command that may end with 0, or with 2 and one line, or with 1 where it found something wrong.

    Returns the exit code.
    """
    code, _, said = answer(*arguments)
    if code == 2:
        assert said.startswith("labkit: error: ") and len(said.splitlines()) == 1, said
    else:
        assert code in (0, 1), (code, said)
        assert "Traceback" not in said and "labkit: error" not in said, said
    return code
