"""``labkit lesson``: the list, the student's copies, and the check of a saved answer."""

import json
import os

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.lessons import commands as command
from course.lessons import verdict
from course.lessons.verdict import LESSONS, Exercise, Wrong, a_number
from labkit.commands import main as cli
from labkit.notebook import files

RIGHT = "answer = None\n### BEGIN SOLUTION\nanswer = 4\n### END SOLUTION\n\n"
CHECK = 'check("04.2", answer)'


def verify(answer):
    if a_number(answer) != 4:
        raise Wrong("count the arrays")
    return "four arrays"


def lesson(code: str = RIGHT + CHECK):
    cell = new_code_cell(code, id="exercise", metadata={"jupyter": {"source_hidden": True}})
    cell.outputs, cell.execution_count = [new_output("stream", text="four")], 3
    return new_notebook(cells=[new_markdown_cell("# Title of it\n\nWords.", id="title"), cell])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, beside sources of all lessons with an exercise 04.2."""
    sources, current = tmp_path / "notebooks", tmp_path / "current"
    sources.mkdir()
    current.mkdir()
    for number, name in enumerate(LESSONS):
        nbformat.write(lesson(), sources / f"{number:02}_{name}.ipynb")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Train", id="title")]), sources / "train.ipynb")
    monkeypatch.setattr(files, "NOTEBOOKS", sources)
    monkeypatch.setattr(verdict, "exercises", lambda number: (Exercise("04.2", "Count the arrays", verify),))
    monkeypatch.chdir(current)
    return current


def test_the_list_has_every_lesson_with_its_title(here, capsys):
    assert cli.main(["lesson", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("04")] == [["04_replicas", "Title", "of", "it"]]
    assert sum(line.endswith("Title of it") for line in lines) == len(LESSONS)


def test_without_notebooks_one_line_says_how_to_get_them(here, monkeypatch, capsys):
    monkeypatch.setattr(files, "NOTEBOOKS", here)
    for words in (["list"], ["start"], ["start", "4"]):
        assert cli.main(["lesson", *words]) == 2
        assert "install it from a whole checkout" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["4", "04", "replicas", "04_replicas", "04_replicas.ipynb"])
def test_a_lesson_has_several_names_and_its_copy_no_solution(name, here, capsys):
    assert cli.main(["lesson", "start", name]) == 0
    assert "wrote lessons/04_replicas.ipynb" in capsys.readouterr().out
    assert [path.name for path in (here / "lessons").iterdir()] == ["04_replicas.ipynb"]
    cell = nbformat.read(here / "lessons" / "04_replicas.ipynb", 4).cells[1]
    assert "SOLUTION" not in cell.source
    assert "answer = 4" not in cell.source
    assert CHECK in cell.source
    assert (cell.outputs, cell.execution_count, cell.metadata, cell.id) == ([], None, {}, "exercise")


def test_all_lessons_are_started_at_once_and_what_the_student_wrote_is_kept(here, capsys):
    assert cli.main(["lesson", "start", "4", "04_replicas"]) == 0
    assert capsys.readouterr().out.count("04_replicas.ipynb") == 1, "named twice, written once"
    mine = here / "lessons" / "04_replicas.ipynb"
    mine.write_text(mine.read_text().replace("Words.", "My words."))
    written = mine.read_bytes()
    assert cli.main(["lesson", "start"]) == 0
    said = capsys.readouterr().out
    assert "lessons/04_replicas.ipynb is there already and stays as it is" in said
    assert said.count("wrote ") == len(LESSONS)
    assert mine.read_bytes() == written
    names = [f"{number:02}_{name}.ipynb" for number, name in enumerate(LESSONS)]
    assert sorted(path.name for path in (here / "lessons").iterdir()) == [*names, "train.ipynb"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("14", "known: 00_tour, 01_data"), ("../04_replicas", "did you mean '04_replicas'?")],
)
def test_an_unknown_lesson_ends_with_those_that_exist_and_writes_nothing(name, hint, here, capsys):
    assert cli.main(["lesson", "start", "0", name]) == 2
    assert f"unknown notebook {name!r}; {hint}" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_a_folder_that_cannot_be_written_is_named(here, capsys):
    (here / "file").write_text("kept")
    for folder in ("file", "file/within", "/proc/lessons"):
        assert cli.main(["lesson", "start", "4", "--folder", folder]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"--folder {folder} can't be written: " in line
    assert (here / "file").read_text() == "kept"


def test_an_interrupted_copy_leaves_nothing_behind(here, monkeypatch, capsys):
    def fail(source, target):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", fail)  # the whole copy is written under another name before
    assert cli.main(["lesson", "start", "4"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not list((here / "lessons").iterdir())


STUB = "answer = None\n...  # your code\n\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        (RIGHT + CHECK, 0, "✓ exercise 04.2: four arrays"),
        ("answer = 4\n" + CHECK, 0, "✓ exercise 04.2: four arrays"),
        ("from course.lessons import check\nanswer = 4\n" + CHECK, 0, "✓ exercise 04.2: four arrays"),
        ("answer = 3\n" + CHECK, 1, "✗ exercise 04.2: count the arrays"),
        (STUB + CHECK, 1, "✗ exercise 04.2: not answered yet"),
        ("answer = arrays\n" + CHECK, 1, "NameError: name 'arrays' is not defined; the cell is run alone"),
        ("%time answer = 4\n" + CHECK, 1, "% and ! commands of notebooks don't work here"),
        ("exit(0)\n" + CHECK, 1, "the cell raised SystemExit"),
        ("answer = 4\n# " + CHECK, 1, 'the cell ended without check("04.2", …)'),
        (
            'answer = 4\ncheck("04.3", answer)\n# ' + CHECK,
            1,
            "InputError: no exercise '04.3'",
        ),
    ],
)
def test_a_saved_answer_is_checked(code, exit_code, said, here, capsys):
    nbformat.write(lesson(code), here / "04_replicas.ipynb")
    assert cli.main(["lesson", "check", "04.2"]) == exit_code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "04.2 Count the arrays (04_replicas.ipynb)"
    assert said in lines[-1]
    assert len(lines) == 2


def test_a_cell_that_never_ends_is_ended(here, monkeypatch, capsys):
    monkeypatch.setattr(command, "SECONDS", 0.2)
    nbformat.write(lesson("while True: pass\n" + CHECK), here / "04_replicas.ipynb")
    assert cli.main(["lesson", "check", "04.2"]) == 1
    assert "✗ exercise 04.2: the cell ran for over 0.2 s" in capsys.readouterr().out


def test_a_cell_can_hold_a_function_that_tensorflow_converts(here, capsys):
    code = """
import tensorflow as tf

@tf.function
def doubled(x):
    if x > 1:
        return 2 * x
    return x

answer = int(doubled(tf.constant(2)))
"""
    nbformat.write(lesson(code + CHECK), here / "04_replicas.ipynb")
    assert cli.main(["lesson", "check", "04.2"]) == 0, capsys.readouterr().out


def test_the_copy_of_start_is_found_first_and_a_missing_notebook_or_line_is_named(here, capsys):
    nbformat.write(lesson("answer = 4\n"), here / "mine.ipynb")
    nowhere = "no 04_replicas.ipynb in ./lessons or in this folder; write it with labkit lesson start"
    for words, said in (
        (["04.2", "--notebook", "mine.ipynb"], 'mine.ipynb has no cell with check("04.2", …); was the line'),
        (["04.2", "--notebook", "absent.ipynb"], "there is no absent.ipynb"),
        (["04.2", "--notebook", "."], ". can't be read: Is a directory"),
        (["04.2"], nowhere),
        (["04.7"], "no exercise '04.7'; lesson 04 has 04.2"),
        (["44.2"], "no lesson '44'"),
        (["4.2"], "no lesson '4'; lessons are 00 to 09, exercises 04.1, 04.2"),
    ):
        assert cli.main(["lesson", "check", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    cli.main(["lesson", "start", "4"])
    nbformat.write(lesson(), here / "04_replicas.ipynb")
    assert cli.main(["lesson", "check", "04.2"]) == 1
    assert cli.main(["lesson", "check", "04.2", "--notebook", "04_replicas.ipynb"]) == 0
    assert "(lessons/04_replicas.ipynb)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["", "words", "[]", "{}", '{"cells": 3}', '{"nbformat": 4}', '{"nbformat": 4, "cells": [{}]}', "\0"],
)
def test_a_file_that_is_no_notebook_is_named(text, here, capsys):
    (here / "mine.ipynb").write_text(text)
    assert cli.main(["lesson", "check", "04.2", "--notebook", "mine.ipynb"]) == 2
    assert "mine.ipynb is not a notebook" in capsys.readouterr().err


def test_a_notebook_of_an_older_format_is_read(here):
    written = json.loads(nbformat.writes(lesson("answer = 4\n" + CHECK)))
    written["nbformat_minor"] = 2
    for cell in written["cells"]:
        del cell["id"]
    (here / "old.ipynb").write_text(json.dumps(written))
    assert cli.main(["lesson", "check", "04.2", "--notebook", "old.ipynb"]) == 0
