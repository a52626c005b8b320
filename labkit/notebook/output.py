"""Where an executed notebook goes, and the hidden file beside it that papermill writes to."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from labkit import home
from labkit.errors import InputError


def output_path(notebook: Path, output: str | os.PathLike[str] | None) -> Path:
    """Return where the executed notebook goes. Raises InputError where it can't."""
    way_out = _way_out(shared=output is None)
    if output is None:
        folder, name = home.runs_home() / "notebooks", notebook.name
    else:
        path = home.expanded(output).absolute()
        folder, name = path.parent, path.name
        if path.is_dir():
            raise InputError(f"--output {path} is a folder; name a file in it: {path / notebook.name}")
        if path.suffix != ".ipynb":
            raise InputError(f"--output {path} is no notebook's name; allowed: a name that ends in .ipynb")
        if path.exists() and path.samefile(notebook):
            raise InputError(f"--output {path} is the notebook itself; name another file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} can't be made: {error.strerror}; {way_out}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} can't be written; {way_out}")
    return folder / name


def _way_out(*, shared: bool) -> str:
    """What to do about a folder that can't be written. ``shared``: it is labkit's own."""
    return "set LABKIT_HOME to another folder" if shared else "name a file of yours with --output"


@contextlib.contextmanager
def partial_file(target: Path, *, shared: bool) -> Iterator[Path]:
    """Hold a hidden file beside ``target`` that papermill writes to; it is removed at the end.

    Its lock tells a file that is being written from one that a killed process left behind.

    Args:
        target: the executed notebook's place.
        shared: several processes may hold a file for this place, because each chooses another in the end.

    Raises InputError if another process holds it, and where no file can be made.
    """
    beginning = f".{target.stem}"
    if shared:
        for left in target.parent.glob(f"{beginning}-*.partial.ipynb"):
            with contextlib.suppress(OSError, _Held), _locked(left):
                left.unlink()
        beginning += f"-{os.getpid()}"
    path = target.with_name(f"{beginning}.partial.ipynb")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(path))
        except _Held:
            raise InputError(f"{target} is being written by another process; name another --output") from None
        except OSError as error:
            way_out = _way_out(shared=shared)
            raise InputError(f"{target.parent} can't be written: {error.strerror}; {way_out}") from None
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


class _Held(Exception):
    """Another process has locked the file."""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _Held from None
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield
                return
        # Its owner removed it between opening and locking.
