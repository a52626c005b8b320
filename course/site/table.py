"""The table of lessons in ``docs/course.md``."""

import re
from collections.abc import Sequence

from course.site.build import Paths
from course.site.counts import count_outputs, count_source, failed_stubs
from course.site.execute import FAILED
from labkit.errors import InputError
from labkit.notebook.files import lesson_files
from labkit.run_directory import write_text_atomic
from labkit.tables import markdown_table

COLUMNS = (
    "lesson", "minutes of study", "of the machine", "words", "figures", "claims", "exercises passed",
    "stubs failed", "sliders", "live widgets",
)  # fmt: skip
BEGIN = "<!-- made by `make course`: -->"
END = "<!-- end of the table -->"


def write_table(paths: Paths) -> list[str]:
    """Write the table of lessons between its markers.

    What is counted in outputs stays as it is for a lesson that isn't executed or failed.

    Returns a line for each lesson whose outputs aren't known.
    Raises InputError where the document lacks the markers.
    """
    text = paths.overview.read_text(encoding="utf-8")
    before, missing = read_rows(text), []
    rows: list[Sequence[str]] = [COLUMNS]
    for source in lesson_files(paths.notebooks):
        lesson = paths.lesson(source)
        counted = count_source(lesson.notebook)
        row = {
            **before.get(source.stem, {}),
            "lesson": f"{source.stem[:2]} [{counted.title}](../notebooks/{source.name})",
            "minutes of study": str(counted.study_minutes),
            "of the machine": str(counted.minutes),
            "words": f"{counted.words:,}",
            "live widgets": str(counted.live),
        }
        if lesson.executed and not any(
            FAILED in cell.metadata.get("tags", ()) for cell in lesson.executed.cells
        ):
            stubs, outputs = failed_stubs(lesson.notebook), count_outputs(lesson.executed)
            row |= {name: str(outputs[name]) for name in ("figures", "claims", "sliders")}
            row["exercises passed"] = f"{outputs['passed']} of {len(stubs)}"
            row["stubs failed"] = f"{sum(stubs.values())} of {len(stubs)}"
        elif "figures" not in row:
            missing.append(f"{source.stem} was never executed to its end: its row lacks counts")
        rows.append([row.get(column, "–") for column in COLUMNS])
    start, _, rest = text.partition(BEGIN)
    _, _, end = rest.partition(END)
    write_text_atomic(paths.overview, f"{start}{BEGIN}\n{markdown_table(rows)}\n{END}{end}")
    return missing


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
