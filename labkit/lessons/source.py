"""The notebooks of the lessons: one source, with solutions, from which the student's copy is made.

A solution stands between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` (the convention of nbgrader). The
student's copy has ``...`` in its place. A cell of the source must also run with the solution left out.
"""

import copy
import re
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.lessons.verdict import LESSONS
from labkit.notebook.files import NOTEBOOKS, read_notebook

__all__ = [
    "exercise_cells",
    "lesson_path",
    "lesson_paths",
    "read_notebook",
    "student_code",
    "student_notebook",
    "training_notebook",
]

SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION[ \t]*$", re.DOTALL | re.MULTILINE
)
STUB = r"\1...  # your code"
CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d\.\d)["']""")


def lesson_paths() -> list[Path]:
    """Return the lessons' sources in order. Raises InputError where labkit is installed without them."""
    return [lesson_path(f"{number:02}") for number in range(len(LESSONS))]


def lesson_path(name: str) -> Path:
    """Return the source of a lesson, given its number or name: ``04``, ``4``, ``04_replicas``, ``replicas``.

    Raises InputError if there is no such lesson, or labkit is installed without its notebooks.
    """
    known = [f"{number:02}_{title}" for number, title in enumerate(LESSONS)]
    wanted = name.removesuffix(".ipynb")
    for full in known:
        number, _, title = full.partition("_")
        if wanted in (full, number, title, str(int(number))):
            path = NOTEBOOKS / f"{full}.ipynb"
            if not path.is_file():
                raise InputError(
                    f"there is no {path}; clone the repository, which has the lessons, and work there"
                )
            return path
    raise InputError(f"no lesson {name!r}; there are {', '.join(known)}")


def training_notebook() -> Path:
    """Return ``train.ipynb``. Raises InputError where labkit is installed without it."""
    path = NOTEBOOKS / "train.ipynb"
    if not path.is_file():
        raise InputError(f"there is no {path}; clone the repository, which has it, and work there")
    return path


def student_code(source: str) -> str:
    """Return the code of a cell with ``...`` in place of each solution."""
    return SOLUTION.sub(STUB, source)


def student_notebook(notebook: Any) -> Any:
    """Return a copy of a lesson without solutions and outputs."""
    result = copy.deepcopy(notebook)
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.source, cell.outputs, cell.execution_count = student_code(cell.source), [], None
            cell.metadata.pop("jupyter", None)  # the source hides its solutions
    return result


def exercise_cells(notebook: Any) -> dict[str, str]:
    """Return the code of each exercise's cell by the exercise's number."""
    found: dict[str, str] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for number in CHECK.findall(cell.source):
                found[number] = cell.source
    return found
