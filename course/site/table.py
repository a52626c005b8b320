"""The table of lessons in ``docs/course.md``."""

import re
from pathlib import Path

import nbformat

from course.site.build import Paths
from course.site.counts import count_outputs, count_source, failed_stubs
from course.site.execute import FAILED
from labkit.errors import InputError
from labkit.notebook.files import lesson_files
from labkit.run_directory import write_text_atomic

COLUMNS = (
    "lesson",
    "minutes",
    "words",
    "figures",
    "claims",
    "exercises passed",
    "stubs failed",
    "sliders",
    "live widgets",
)
BEGIN = "<!-- made by `make course`: -->"
END = "<!-- end of the table -->"


def write_table(paths: Paths) -> list[str]:
    """Write the table of lessons between its markers.

    What is counted in outputs stays as it is for a lesson that isn't executed or failed.

    Returns a line for each lesson whose outputs aren't known.
    Raises InputError where the document lacks the markers.
    """
    text = paths.overview.read_text(encoding="utf-8")
    before, rows = read_rows(text), []
    missing = []
    for source in lesson_files(paths.notebooks):
        row = {**before.get(source.stem, {}), **_from_source(source)}
        executed = paths.executed / source.name
        if executed.exists() and not _failed(executed):
            row |= _from_outputs(source, executed)
        elif "figures" not in row:
            missing.append(f"{source.stem} was never executed to its end: its row lacks counts")
        rows.append([row.get(column, "–") for column in COLUMNS])
    head = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)]]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])
    start, _, rest = text.partition(BEGIN)
    _, _, end = rest.partition(END)
    write_text_atomic(paths.overview, f"{start}{BEGIN}\n{table}\n{END}{end}")
    return missing


def _failed(executed: Path) -> bool:
    cells = nbformat.read(executed, as_version=4).cells
    return any(FAILED in cell.metadata.get("tags", ()) for cell in cells)


def read_rows(text: str) -> dict[str, dict[str, str]]:
    """Return the rows of the table by the lesson's name, each by column.

    Raises InputError where the document lacks the markers.
    """
    if BEGIN not in text or END not in text:
        raise InputError(f"the document of the course has no table; it stands between {BEGIN} and {END}")
    rows = {}
    for line in text.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        found = re.search(r"\((?:.*/)?(\d\d_\w+)\.ipynb\)", cells[0])
        if found and len(cells) == len(COLUMNS):
            rows[found[1]] = dict(zip(COLUMNS, cells, strict=True))
    return rows


def _from_source(source: Path) -> dict[str, str]:
    counted = count_source(nbformat.read(source, as_version=4))
    return {
        "lesson": f"{source.stem[:2]} [{counted.title}](../notebooks/{source.name})",
        "minutes": str(counted.minutes),
        "words": f"{counted.words:,}",
        "live widgets": str(counted.live),
    }


def _from_outputs(source: Path, executed: Path) -> dict[str, str]:
    notebook = nbformat.read(source, as_version=4)
    counted = count_outputs(nbformat.read(executed, as_version=4))
    stubs = failed_stubs(notebook)
    return {
        "figures": str(counted.figures),
        "claims": str(counted.claims),
        "exercises passed": f"{counted.passed} of {len(stubs)}",
        "stubs failed": f"{sum(stubs.values())} of {len(stubs)}",
        "sliders": str(counted.sliders),
    }
