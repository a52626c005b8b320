"""For teachers: lessons as assignments of nbgrader and Otter-Grader.

Formats: https://nbgrader.readthedocs.io/en/stable/contributor_guide/metadata.html and
https://otter-grader.readthedocs.io/en/latest/otter_assign/notebook_format.html
"""

import ast
import copy
from collections.abc import Callable
from typing import Annotated, Any

from course.lessons.commands import CHECK, NEEDS, write_copies
from labkit.commands.flags import Flag, LocalPath
from labkit.errors import InputError, require_extra
from labkit.home import expanded

Folder = Annotated[LocalPath | None, Flag(metavar="DIR")]


# ---- assignments ---------------------------------------------------------------------------------------


def lesson_export(*lesson: str, nbgrader: Folder = None, otter: Folder = None) -> int:
    """Write lessons as assignments for nbgrader or Otter-Grader, a point for each exercise. Returns 0.

    The files are DIR/LESSON/LESSON.ipynb and hold the solutions: `nbgrader generate_assignment` and
    `otter assign` make from them what students get.

    Args:
        lesson: Numbers or names. Default: all lessons.
        nbgrader: Folder `source` of a course of nbgrader.
        otter: Folder for master notebooks of Otter Assign.
    """
    from labkit.notebook.files import choose_notebooks, lesson_files

    require_extra("notebook", NEEDS, "labkit lesson export")
    if nbgrader is None and otter is None:
        raise InputError("nothing to write; name a folder with --nbgrader DIR or --otter DIR")
    sources = choose_notebooks(lesson, lesson_files())
    for flag, folder, change in (("nbgrader", nbgrader, nbgrader_notebook), ("otter", otter, otter_notebook)):
        if folder is not None:
            targets = {source: expanded(folder) / source.stem / source.name for source in sources}
            write_copies(targets, change, f"--{flag} {folder}")
    return 0


def nbgrader_notebook(notebook: Any) -> Any:
    """Return a lesson whose exercises are autograded answers of nbgrader, each with a locked test."""
    from nbformat.v4 import new_code_cell

    def cells(number: str, source: str, answer: str, call: str) -> list[Any]:
        name = f"exercise-{number.replace('.', '-')}"
        common = {"schema_version": 3, "task": False}
        asked = {**common, "grade_id": name, "grade": False, "solution": True, "locked": False}
        graded = {**common, "grade_id": f"{name}-test", "grade": True, "solution": False, "locked": True}
        test = f"verdict = {call}\nprint(verdict)\nassert verdict"
        return [
            new_code_cell(answer, metadata={"nbgrader": asked}),
            new_code_cell(test, metadata={"nbgrader": {**graded, "points": 1}}),
        ]

    return _with_exercises(notebook, cells)


def otter_notebook(notebook: Any) -> Any:
    """Return a lesson as a master notebook of Otter Assign, with a question for each exercise."""
    from nbformat.v4 import new_code_cell, new_output, new_raw_cell

    def cells(number: str, source: str, answer: str, call: str) -> list[Any]:
        name = f"exercise_{number.replace('.', '_')}"
        expected = new_output("execute_result", data={"text/plain": "True"})
        return [
            new_raw_cell(f"# BEGIN QUESTION\nname: {name}\npoints: 1"),
            new_raw_cell("# BEGIN SOLUTION"),
            new_code_cell(source.replace("### ", "# ")),
            new_raw_cell("# END SOLUTION"),
            new_raw_cell("# BEGIN TESTS"),
            new_code_cell(f"bool({call})", outputs=[expected]),
            new_raw_cell("# END TESTS"),
            new_raw_cell("# END QUESTION"),
        ]

    result = _with_exercises(notebook, cells)
    result.cells.insert(0, new_raw_cell("# ASSIGNMENT CONFIG\nexport_cell: false"))
    return result


def _with_exercises(notebook: Any, cells: Callable[[str, str, str, str], list[Any]]) -> Any:
    """Return a copy of a lesson with other ``cells(number, source, answer, call of check)`` of exercises."""
    result = copy.deepcopy(notebook)
    result.cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and (found := CHECK.search(cell.source)):
            lines = cell.source.splitlines()
            last = ast.parse(cell.source).body[-1].lineno - 1  # the check
            answer, call = "\n".join(lines[:last]).rstrip(), "\n".join(lines[last:])
            result.cells += cells(found[1], cell.source, answer, call)
        else:
            result.cells.append(cell)
    return result
