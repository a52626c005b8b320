"""The notebooks of the lessons: one source, with solutions, from which the student's copy is made.

A solution stands between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` (the convention of nbgrader). The
student's copy has ``...`` in its place. A cell of the source must also run with the solution left out.
"""

import copy
import re
from typing import Any

__all__ = ["exercise_cells", "student_code", "student_notebook"]

SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION[ \t]*$", re.DOTALL | re.MULTILINE
)
STUB = r"\1...  # your code"
CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d\.\d)["']""")


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
