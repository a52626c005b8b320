"""``labkit lesson``: the list, the student's copies, and the check of a saved answer."""

import json
import os
import subprocess
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.lessons import examine
from course.lessons.verdict import LESSONS
from labkit.commands import main as cli
from labkit.notebook import files

RIGHT = "import math\nanswer = None\n### BEGIN SOLUTION\nanswer = math.log\n### END SOLUTION\n\n"
CHECK = 'check("00.2", answer)'
VERIFIED = "✓ exercise 00.2: right for 2 to 1000 classes"


def lesson(code: str = RIGHT + CHECK):
    cell = new_code_cell(code, id="exercise", metadata={"jupyter": {"source_hidden": True}})
    cell.outputs, cell.execution_count = [new_output("stream", text="four")], 3
    return new_notebook(cells=[new_markdown_cell("# Title of it\n\nWords.", id="title"), cell])


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, beside sources of all lessons with the exercise 00.2."""
    sources, current = tmp_path / "notebooks", tmp_path / "current"
    sources.mkdir()
    current.mkdir()
    for number, name in enumerate(LESSONS):
        nbformat.write(lesson(), sources / f"{number:02}_{name}.ipynb")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Train", id="title")]), sources / "train.ipynb")
    monkeypatch.setattr(files, "NOTEBOOKS", sources)
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
    assert "math.log" not in cell.source
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
    [("55", "known: 00_tour, 01_data"), ("../04_replicas", "did you mean '04_replicas'?")],
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
ANSWER = "import math\nanswer = math.log\n"
WRONG = "answer = lambda classes: 7.0\n"


def check_saved(code, here, *words):
    nbformat.write(lesson(code), here / "00_tour.ipynb")
    return cli.main(["lesson", "check", "00.2", *words])


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        (RIGHT + CHECK, 0, VERIFIED),
        (
            "import math\nanswer = math.log2\n" + CHECK,
            1,
            "✗ exercise 00.2: the loss for 10 classes, 3.322: this is in bits",
        ),
    ],
)
def test_a_saved_answer_is_checked(code, exit_code, said, here, capsys):
    assert check_saved(code, here) == exit_code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "00.2 predict the first loss (00_tour.ipynb)"
    assert said in lines[-1]
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from course.lessons import check\n" + ANSWER + CHECK, VERIFIED),
        (STUB + CHECK, "✗ exercise 00.2: not answered yet"),
        ("answer = arrays\n" + CHECK, "NameError: name 'arrays' is not defined; the cell is run alone"),
        ("%time answer = 4\n" + CHECK, "% and ! commands of notebooks don't work here"),
        ("exit(0)\n" + CHECK, "the cell raised SystemExit"),
        (ANSWER + "# " + CHECK, 'the cell ended without check("00.2", …)'),
        (ANSWER + 'check("00.7", answer)\n# ' + CHECK, "InputError: no exercise '00.7'"),
        ("import time\ntime.sleep(60)\n" + ANSWER + CHECK, "the cell ran for over 1 s"),
        (f"def check(number, answer):\n    return True\n\n{WRONG}{CHECK}", "ended without check("),
        (f"import course.lessons\ncourse.lessons.check = lambda *_: True\n{WRONG}{CHECK}", "for 10 classes"),
    ],
)
def test_a_cell_without_an_answer_gets_a_sentence(code, said, monkeypatch):
    monkeypatch.setattr(examine, "SECONDS", 1)
    assert said in str(examine.judge("00.2", code))


def case(name, code, said, *marks):
    return pytest.param(code, said, id=name, marks=marks)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("code", "said"),
    [
        case("print", f"import os\nprint({VERIFIED!r}, flush=True)\nos._exit(0)\n# {CHECK}", "(exit code 0)"),
        case("patch", f"import math\nmath.log = lambda x: 7.0\n{WRONG}{CHECK}", "replaces math.log"),
        case(
            "exercise",
            "from course.lessons import verdict\n"
            "right = verdict.Exercise('00.2', '', lambda answer: 'right')\n"
            f"verdict.exercise = lambda number: right\n{WRONG}{CHECK}",
            "replaces course.lessons.verdict.exercise",
            LONG,
        ),
        case(
            "when called",
            "import math\n\ndef answer(classes):\n    math.log = math.log2 = math.log10 = lambda x: 1.0\n"
            f"    return 1.0\n\n{CHECK}",
            "replaces math.log",
            LONG,
        ),
        case(
            "killed",
            f"import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n# {CHECK}",
            "by SIGKILL)",
            LONG,
        ),
        case("fork", f"import os\nif os.fork():\n    os._exit(3)\n{ANSWER}{CHECK}", "(exit code 3)", LONG),
        case(
            "no alarm",
            "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(60)\n"
            f"{ANSWER}{CHECK}",
            "the cell ran for over 1 s",
            LONG,
        ),
        case(
            "daemon",
            "import subprocess\nsubprocess.Popen(['sleep', '61.25'], start_new_session=True)\n"
            f"{WRONG}{CHECK}",
            "for 10 classes",
        ),
    ],
)
def test_what_a_cell_says_or_does_to_its_process_is_no_verdict(code, said, here, monkeypatch, capsys):
    monkeypatch.setattr(examine, "SECONDS", 1)
    monkeypatch.setattr(examine, "SECONDS_TO_START", 15)
    started = time.monotonic()
    assert check_saved(code, here) == 1
    assert time.monotonic() - started < 40
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("✗ exercise 00.2: ") and said in line
    running = subprocess.run(["pgrep", "-f", "^sleep 61.25$"], capture_output=True, text=True).stdout
    assert not running, "what a cell starts ends with it"


def test_a_lesson_is_checked_at_once_and_a_seed_draws_other_inputs(here, capsys):
    answers = [RIGHT + CHECK, "import math\n\n\n" + STUB + 'check("00.1", answer)']
    notebook = lesson(answers[0])
    notebook.cells.append(new_code_cell(answers[1]))
    nbformat.write(notebook, here / "00_tour.ipynb")
    assert cli.main(["lesson", "check", "00", "--seed", "7"]) == 1
    title, *lines, summary = capsys.readouterr().out.splitlines()
    assert title == "00 all exercises (00_tour.ipynb)"
    assert [line[:15] for line in lines] == [
        f"{mark} exercise 00.{number}" for number, mark in enumerate("✗✓✗✗", 1)
    ]
    assert "not answered yet" in lines[0] and "no cell with check" in lines[2]
    assert summary == "1 of 4 are right"


def test_a_cell_can_hold_a_function_that_tensorflow_converts():
    code = """
import tensorflow as tf

@tf.function
def doubled(x):
    if x > 1:
        return 2 * x
    return x

assert int(doubled(tf.constant(2))) == 4
"""
    assert VERIFIED in str(examine.judge("00.2", code + ANSWER + CHECK))


def test_the_copy_of_start_is_found_first_and_a_missing_notebook_or_line_is_named(here, capsys):
    nbformat.write(lesson(ANSWER), here / "mine.ipynb")
    nowhere = "no 00_tour.ipynb in ./lessons or in this folder; write it with labkit lesson start"
    for words, said in (
        (["00.2", "--notebook", "mine.ipynb"], 'mine.ipynb has no cell with check("00.2", …); was the line'),
        (["00.2", "--notebook", "absent.ipynb"], "there is no absent.ipynb"),
        (["00.2", "--notebook", "."], ". can't be read: Is a directory"),
        (["00.2"], nowhere),
        (["00.7"], "no exercise '00.7'; lesson 00 has 00.1"),
        (["44.2"], "no lesson '44'"),
        (["4.2"], f"no lesson '4'; lessons are 00 to {len(LESSONS) - 1:02}, exercises 04.1, 04.2"),
    ):
        assert cli.main(["lesson", "check", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    cli.main(["lesson", "start", "0"])
    nbformat.write(lesson(), here / "00_tour.ipynb")
    assert cli.main(["lesson", "check", "00.2"]) == 1
    assert cli.main(["lesson", "check", "00.2", "--notebook", "00_tour.ipynb"]) == 0
    assert "(lessons/00_tour.ipynb)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["", "words", "[]", "{}", '{"cells": 3}', '{"nbformat": 4}', '{"nbformat": 4, "cells": [{}]}', "\0"],
)
def test_a_file_that_is_no_notebook_is_named(text, here, capsys):
    (here / "mine.ipynb").write_text(text)
    assert cli.main(["lesson", "check", "00.2", "--notebook", "mine.ipynb"]) == 2
    assert "mine.ipynb is not a notebook" in capsys.readouterr().err


def test_a_notebook_of_an_older_format_is_read(here):
    written = json.loads(nbformat.writes(lesson(ANSWER + CHECK)))
    written["nbformat_minor"] = 2
    for cell in written["cells"]:
        del cell["id"]
    (here / "old.ipynb").write_text(json.dumps(written))
    assert cli.main(["lesson", "check", "00.2", "--notebook", "old.ipynb"]) == 0
