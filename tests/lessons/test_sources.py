"""Every lesson keeps its form; every solution passes its check, and stubs and wrong answers don't."""

import ast
import importlib
import re
from pathlib import Path

import nbformat
import pytest

from course.lessons.commands import exercise_cells, student_code, student_notebook
from course.lessons.examine import run_exercise_cell
from course.lessons.verdict import LESSONS, check, exercises
from course.site.counts import count_source
from labkit.notebook.files import lesson_files, read_notebook

WRITTEN = lesson_files()
EXERCISES = [
    pytest.param(path, exercise, id=exercise.number)
    for path in WRITTEN
    for exercise in exercises(int(path.name[:2]))
]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_the_form_of_a_lesson(path: Path) -> None:
    notebook = read_notebook(path)
    markdown = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counted = count_source(notebook)
    assert 40 <= counted.cells <= 80
    assert counted.words <= 2500
    assert counted.lines <= (200 if int(path.name[:2]) < 10 else 340)  # from 10 on, code is what they teach
    first = notebook.cells[0].source
    assert re.match(r"# \S", first)
    assert "You will be able to" in first
    assert "You should know" in first
    assert re.search(r"About (\d+) minutes? on two CPU cores", first)
    assert sum(text.count("<details>") for text in markdown) >= 5
    assert sum("parameters" in cell.metadata.get("tags", ()) for cell in code) == 1
    assert sorted(exercise_cells(notebook)) == [found.number for found in exercises(int(path.name[:2]))]
    assert len(exercise_cells(notebook)) >= 4
    assert path.stem in [f"{number:02}_{name}" for number, name in enumerate(LESSONS)]


def test_the_tour_lists_every_other_lesson() -> None:
    cells = "\n".join(cell.source for cell in read_notebook(WRITTEN[0]).cells)
    (table,) = re.findall(r"## The other lessons\n(.*?)\n\nGo through", cells, re.DOTALL)
    listed = re.findall(r"^\| (\d\d) (\w+) \|", table, re.MULTILINE)
    assert listed == [(f"{number:02}", name) for number, name in enumerate(LESSONS)][1:]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_the_students_copy_has_no_solution_and_no_output(path: Path) -> None:
    copied = student_notebook(read_notebook(path))
    nbformat.validate(copied)
    for cell in copied.cells:
        assert "SOLUTION" not in cell.source
        if cell.cell_type == "code":
            assert not cell.outputs
            if not re.search(r"^\s*[%!]", cell.source, re.MULTILINE):
                ast.parse(cell.source)


@pytest.mark.parametrize(("path", "exercise"), EXERCISES)
def test_the_solution_passes_and_the_stub_does_not(path: Path, exercise) -> None:
    source = exercise_cells(read_notebook(path))[exercise.number]
    assert "### BEGIN SOLUTION" in source
    for code, right in ((source, True), (student_code(source), False)):
        verdicts = []
        error = run_exercise_cell(code, verdicts)
        assert error is None, f"{exercise.number}: {error!r}"
        assert [bool(verdict) for verdict in verdicts] == [right], verdicts


@pytest.mark.long
@pytest.mark.parametrize(("path", "exercise"), EXERCISES)
def test_wrong_answers_fail_with_a_hint_of_their_own(path: Path, exercise) -> None:
    module = importlib.import_module(f"tests.lessons.wrong_answers.{LESSONS[int(path.name[:2])]}")
    wrong = module.WRONG[exercise.number]
    assert len(wrong) >= 2
    for answer, hint in wrong:
        verdict = check(exercise.number, answer)
        assert not verdict
        assert hint in verdict.text, f"{exercise.number}: {verdict.text}"
    assert len({hint for _, hint in wrong}) == len(wrong), "each way to be wrong deserves a hint of its own"


@pytest.mark.parametrize(("path", "exercise"), EXERCISES)
def test_any_other_object_gets_a_sentence(path: Path, exercise) -> None:
    for answer in ("text", float("nan"), {}, [[1.0]], lambda *inputs: None, lambda: "x"):
        verdict = check(exercise.number, answer)
        assert not verdict
        assert 10 < len(verdict.text) < 400
        assert "\n" not in verdict.text
