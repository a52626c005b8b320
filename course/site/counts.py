"""What there is in a lesson: counted in its source, in its executed notebook, and by running its stubs."""

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course.lessons.commands import exercise_cells, student_code
from labkit.notebook.install_cell import CELL_ID

# Calls of functions and methods that show a figure first and, in JupyterLab, a widget below it.
LIVE = re.compile(r"\b(?:CompareRuns|curves|design_schedule|mistakes|monitor|workers)\(")
MINUTES = re.compile(r"[Aa]bout (\d+) minutes? on two CPU cores")
WORDS_A_MINUTE, MINUTES_AN_EXERCISE = 200, 10  # an estimate: no class was timed


@dataclass(frozen=True)
class FromSource:
    """Counts of a lesson's source: ``minutes`` from its first cell, ``live`` widgets with static twins.

    The cell that installs labkit isn't counted. ``lines`` of code are those that a student reads: without
    comments, empty lines and solutions.
    """

    title: str
    minutes: int
    cells: int
    words: int
    lines: int
    exercises: int
    live: int

    @property
    def study_minutes(self) -> int:
        """The minutes that a student is expected to need, to the nearest five."""
        return 5 * round((self.words / WORDS_A_MINUTE + MINUTES_AN_EXERCISE * self.exercises) / 5)


def count_source(notebook: Any) -> FromSource:
    """Return the counts of a lesson's source."""
    first = notebook.cells[0].source
    minutes = MINUTES.search(first)
    cells = [cell for cell in notebook.cells if cell.get("id") != CELL_ID]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    return FromSource(
        title=first.splitlines()[0].lstrip("# "),
        minutes=int(minutes[1]) if minutes else 0,
        cells=len(cells),
        words=sum(_words(cell.source) for cell in cells if cell.cell_type == "markdown"),
        lines=sum(len(re.findall(r"(?m)^[ \t]*[^\s#]", student_code(source))) for source in code),
        exercises=len(exercise_cells(notebook)),
        live=sum(len(LIVE.findall(source)) for source in code),
    )


def _words(text: str) -> int:
    """Count what a student reads: no tags, no targets of links."""
    text = re.sub(r"<[^>]+>|\]\([^)]*\)", " ", text)
    return len(re.findall(r"\w[\w'’.-]*", text))


def count_outputs(notebook: Any) -> dict[str, int]:
    """Return the counts of an executed lesson: drawn ``figures``, ``claims`` that held, exercises whose
    solution ``passed``, and ``sliders``."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.get("data", {}) for cell in code for output in cell.outputs]
    return {
        "figures": sum("image/png" in data or "image/svg+xml" in data for data in shown),
        "claims": sum(data.get("text/markdown", "").startswith("✓ ") for data in shown),
        "passed": sum(data.get("text/plain", "").startswith("✓ exercise ") for data in shown),
        "sliders": sum("labkit-frames" in data.get("text/html", "") for data in shown),
    }


def failed_stubs(notebook: Any) -> Mapping[str, bool]:
    """Run each exercise without its solution. Returns, by number, whether the check found it unanswered."""
    from course.lessons.examine import run_exercise_cell

    found = {}
    for number, source in exercise_cells(notebook).items():
        verdicts: list[Any] = []
        with contextlib.redirect_stdout(io.StringIO()):
            error = run_exercise_cell(student_code(source), verdicts)
        found[number] = error is None and [bool(verdict) for verdict in verdicts] == [False]
    return found
