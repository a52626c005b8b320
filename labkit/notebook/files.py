"""Notebooks as files: the checkout's by name, and any by path; what an executed one ended with."""

import difflib
import os
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.run_directory import write_text_atomic

__all__ = ["NOTEBOOKS", "conclusion_of", "find_notebook", "read_notebook", "write_notebook"]

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FOLDERS = ("", "experiments")  # of NOTEBOOKS, whose notebooks have names


def find_notebook(name: str | os.PathLike[str]) -> Path:
    """Return the path of a notebook.

    Args:
        name: a path; or, of a notebook of the checkout that labkit is imported from, its name, the number of
            a lesson, or a lesson's name without the number: ``train``, ``04_replicas``, ``4``, ``replicas``.

    Raises InputError with the nearest name where there is no such notebook, and where labkit is installed
    without its notebooks.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.is_file() and (path.suffix == ".ipynb" or len(path.parts) > 1):
        return path.absolute()
    if not text.strip():
        raise InputError(
            "the notebook's name is empty; name a notebook's file, or one of labkit's such as train"
        )
    if len(path.parts) != 1:
        what = "a folder" if path.is_dir() else "no file"
        raise InputError(f"{text!r} is {what}; name a notebook's file, or one of labkit's such as train")
    named = {path.stem: path for folder in FOLDERS for path in sorted((NOTEBOOKS / folder).glob("*.ipynb"))}
    wanted = text.removesuffix(".ipynb")
    for stem, found in named.items():
        number, _, title = stem.partition("_")
        if wanted in ((stem, number, str(int(number)), title) if number.isdecimal() else (stem,)):
            return found
    if not named:
        raise InputError(
            f"there is no {NOTEBOOKS / wanted}.ipynb: this labkit was installed without its notebooks; "
            "clone the repository and run labkit there"
        )
    near = difflib.get_close_matches(wanted, named, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(named)}, and paths of files"
    raise InputError(f"no notebook {text!r}; {hint}")


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


def conclusion_of(notebook: Any) -> dict[str, Any] | None:
    """Return what an executed notebook ended with (``labkit.notebook.results.Conclusion``), or None."""
    from labkit.notebook.results import RESULT_MIME

    for cell in reversed(notebook.cells):
        for output in cell.get("outputs", ()):
            found = output.get("data", {}).get(RESULT_MIME)
            if found is not None:
                return dict(found)
    return None
