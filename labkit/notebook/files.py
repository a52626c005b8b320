"""Notebooks as files: by name or path, in order, read and written; what an executed one ended with."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.errors import InputError, nearest, unknown_name_error
from labkit.home import expanded, shipped
from labkit.run_directory import write_text_atomic

NOTEBOOKS = shipped("notebooks")
RESULT_MIME = "application/vnd.labkit.result+json"


def lesson_files(folder: Path | None = None) -> list[Path]:
    """Return the lessons in a folder in order; None: labkit's own. Raises InputError without any."""
    return _notebooks("[0-9][0-9]_*.ipynb", folder or NOTEBOOKS)


def course_files(folder: Path | None = None) -> list[Path]:
    """Return the lessons as ``lesson_files``, and then the training notebook."""
    folder = folder or NOTEBOOKS
    return [*lesson_files(folder), *folder.glob("train.ipynb")]


def _notebooks(pattern: str, *folders: Path) -> list[Path]:
    found = [path for folder in folders for path in sorted(folder.glob(pattern))]
    if not found:
        raise InputError(
            f"there is no {folders[0] / pattern}: this labkit was built without its notebooks; install it "
            "from a whole checkout: pip install CHECKOUT"
        )
    return found


def choose_notebooks(names: Sequence[str], known: Sequence[Path]) -> list[Path]:
    """Return the notebooks with these names, each once; all that are known if no name is given.

    Args:
        names: a notebook's name, the number of a lesson, or a lesson's name without the number: ``train``,
            ``04_replicas``, ``04``, ``4``, ``replicas``.
        known: the notebooks to choose from.

    Raises InputError for a name that none has.
    """
    by_name: dict[str, Path] = {}
    for path in known:
        number, _, title = path.stem.partition("_")
        short = (number, str(int(number)), title) if number.isdecimal() else ()
        by_name |= dict.fromkeys((path.stem, *short), path)
    chosen = []
    for name in names:
        found = by_name.get(name.removesuffix(".ipynb"))
        if found is None:
            if near := nearest(name, by_name):
                raise InputError(f"unknown notebook {name!r}; did you mean {by_name[near].stem!r}?")
            raise unknown_name_error("notebook", name, [path.stem for path in known])
        chosen.append(found)
    return list(dict.fromkeys(chosen or known))


def find_notebook(name: str | os.PathLike[str]) -> Path:
    """Return the path of a notebook.

    Args:
        name: a path, or a name as of ``choose_notebooks`` of one of labkit's own notebooks.

    Raises InputError with the nearest name where there is no such notebook, and where labkit is installed
    without its notebooks.
    """
    text = os.fspath(name)
    path = expanded(text)
    if path.is_file() and (path.suffix == ".ipynb" or len(path.parts) > 1):
        return path.absolute()
    if not text.strip():
        raise InputError(
            "the notebook's name is empty; name a notebook's file, or one of labkit's such as train"
        )
    if len(path.parts) != 1:
        what = "a folder" if path.is_dir() else "no file"
        raise InputError(f"{text!r} is {what}; name a notebook's file, or one of labkit's such as train")
    return choose_notebooks([text], _notebooks("*.ipynb", NOTEBOOKS, NOTEBOOKS / "experiments"))[0]


def read_notebook(path: Path) -> Any:
    """Return a notebook. Raises InputError if it can't be read."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        if not isinstance(notebook.cells, list):
            raise ValueError
        return notebook
    except FileNotFoundError:
        raise InputError(f"there is no {path}") from None
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError):  # not its JSON
        raise InputError(f"{path} is not a notebook") from None


def write_notebook(notebook: Any, path: Path) -> None:
    """Write a notebook. A reader sees the whole old file or the whole new one."""
    import nbformat

    write_text_atomic(path, nbformat.writes(notebook).rstrip("\n") + "\n")


def failed_path(target: Path) -> Path:
    """Return where a notebook is kept that failed and should have become ``target``."""
    return target.with_name(f"{target.stem}-failed.ipynb")


def conclusion_of(notebook: Any) -> dict[str, Any] | None:
    """Return what an executed notebook ended with (``labkit.notebook.prepared.Conclusion``), or None."""
    for cell in reversed(notebook.cells):
        for output in cell.get("outputs", ()):
            found = output.get("data", {}).get(RESULT_MIME)
            if found is not None:
                return dict(found)
    return None
