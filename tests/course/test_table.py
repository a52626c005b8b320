"""The table of lessons counts what the lessons have, and docs/course.md holds the table of this checkout."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.lessons import verdict
from course.lessons.verdict import Exercise
from course.site.build import Paths
from course.site.counts import count_outputs, count_source, failed_stubs
from course.site.execute import FAILED
from course.site.table import BEGIN, COLUMNS, END, read_rows, write_table
from labkit.errors import InputError
from labkit.notebook.files import lesson_files, read_notebook
from tests.course.small import EXERCISE, first, make_paths, second

HERE = Paths()


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setattr(verdict, "exercises", lambda lesson: (Exercise("01.1", "title", str),))
    return make_paths(tmp_path)


def test_the_source_is_counted():
    counted = count_source(second(executed=False))
    assert (counted.title, counted.minutes, counted.exercises) == ("Second", 2, 1)
    # 13 in the title, one heading, three about the exercise, four in the question; no targets of links.
    assert counted.words == 21
    assert counted.study_minutes == 10  # one exercise, and seconds of reading
    code = "run.curves()\nlabkit.slider(draw)"
    cells = [new_markdown_cell("# T"), new_code_cell(code), new_code_cell("%cd .."), new_code_cell("f(x)")]
    assert count_source(new_notebook(cells=[*cells, new_code_cell("CompareRuns(2)")])).live == 2


def test_outputs_are_counted():
    counted = count_outputs(second(executed=True))
    assert counted == {"figures": 1, "claims": 0, "passed": 1, "sliders": 0}
    assert count_outputs(first())["figures"] == 0


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        (EXERCISE, True),
        (EXERCISE.replace("answer = None", "answer = 4"), False),  # the stub is right
        (EXERCISE.replace("answer = None", "1 / 0"), False),  # the stub doesn't run
        (EXERCISE.replace("check(", "# check("), False),  # nothing is checked
    ],
)
def test_a_stub_fails_when_it_runs_and_is_found_unanswered(code, failed, paths):
    assert failed_stubs(new_notebook(cells=[new_code_cell(code)])) == {"01.1": failed}


def test_a_lesson_that_is_not_executed_keeps_what_its_row_said(paths):
    assert write_table(paths) == ["00_first was never executed to its end: its row lacks counts"]
    rows = read_rows(paths.overview.read_text())
    assert rows["00_first"]["figures"] == "–"
    assert rows["01_second"]["exercises passed"] == rows["01_second"]["stubs failed"] == "1 of 1"
    (paths.executed / "01_second.ipynb").unlink()
    source = second(executed=False)
    source.cells[0].source += " One more word."
    nbformat.write(source, paths.notebooks / "01_second.ipynb")
    write_table(paths)
    again = read_rows(paths.overview.read_text())["01_second"]
    assert int(again["words"]) == int(rows["01_second"]["words"]) + 3
    assert again["figures"] == "1"


def test_counts_of_a_failed_execution_are_not_written(paths):
    write_table(paths)
    before = paths.overview.read_text()
    failed = second(executed=False)
    failed.cells.insert(1, new_markdown_cell("failed", metadata={"tags": [FAILED]}))
    nbformat.write(failed, paths.executed / "01_second.ipynb")
    write_table(paths)
    assert paths.overview.read_text() == before
    paths.overview.write_text("# Course\n")
    with pytest.raises(InputError, match="the document of the course has no table"):
        write_table(paths)


def test_the_table_of_this_checkout_agrees_with_its_lessons():
    text = HERE.overview.read_text()
    assert text.count(BEGIN) == text.count(END) == 1 and f"| {' | '.join(COLUMNS)} |" in text
    rows = read_rows(text)
    how = "run make course, or python -m course.site table for what is counted in sources"
    assert [*rows] == [path.stem for path in lesson_files()], how
    for path in lesson_files():
        row, counted = rows[path.stem], count_source(read_notebook(path))
        assert f"[{counted.title}](../notebooks/{path.name})" in row["lesson"], how
        assert row["minutes of study"] == str(counted.study_minutes), how
        assert row["of the machine"] == str(counted.minutes), how
        assert row["words"] == f"{counted.words:,}", how
        assert row["live widgets"] == str(counted.live), how
        for column in ("exercises passed", "stubs failed"):
            assert row[column] == f"{counted.exercises} of {counted.exercises}", how
        assert all(cell != "–" for cell in row.values()), how
