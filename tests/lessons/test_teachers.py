"""What teachers get: assignments of two graders, a report that can't be changed unseen, an ordered board."""

import json
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course.lessons import teachers
from course.lessons.commands import exercise_cells, student_code
from course.lessons.verdict import check
from labkit.commands import main as cli
from labkit.notebook.files import lesson_files, read_notebook
from labkit.run_directory import RunDirectory
from tests.commands.made_runs import evaluation, make_run

WRITTEN = lesson_files()
GRADER_ID = "exercise-00-2"


def with_outputs(notebook):
    """Return a notebook as it is when it has been written and read."""
    return nbformat.reads(nbformat.writes(notebook), as_version=4)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_an_assignment_of_nbgrader_has_an_answer_and_a_locked_test_for_each_exercise(path):
    lesson = read_notebook(path)
    made = with_outputs(teachers.nbgrader_notebook(lesson))
    nbformat.validate(made)
    marked = [cell for cell in made.cells if "nbgrader" in cell.metadata]
    assert len({cell.metadata.nbgrader.grade_id for cell in marked}) == len(marked)
    assert all(cell.metadata.nbgrader.schema_version == 3 for cell in marked)
    answers, tests = marked[::2], marked[1::2]
    assert len(answers) == len(exercise_cells(lesson))
    for answer, test in zip(answers, tests, strict=True):
        assert answer.metadata.nbgrader.solution and not answer.metadata.nbgrader.grade
        assert "### BEGIN SOLUTION" in answer.source and "check(" not in answer.source
        assert test.metadata.nbgrader.locked and test.metadata.nbgrader.points == 1
        assert test.source.endswith("assert verdict")


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_master_notebook_of_otter_has_a_question_for_each_exercise(path):
    lesson = read_notebook(path)
    made = with_outputs(teachers.otter_notebook(lesson))
    nbformat.validate(made)
    raw = [cell.source.splitlines()[0] for cell in made.cells if cell.cell_type == "raw"]
    names = ["BEGIN QUESTION", "BEGIN SOLUTION", "END SOLUTION", "BEGIN TESTS", "END TESTS", "END QUESTION"]
    blocks = [f"# {name}" for name in names]
    assert raw == ["# ASSIGNMENT CONFIG", *blocks * len(exercise_cells(lesson))]
    (first, *_) = [cell for cell in made.cells if cell.source.startswith("bool(check(")]
    assert first.outputs[0].data == {"text/plain": "True"}


def test_the_test_of_nbgrader_passes_the_solution_and_fails_the_stub():
    made = teachers.nbgrader_notebook(read_notebook(WRITTEN[0]))
    by_id = {
        cell.metadata.nbgrader.grade_id: cell.source for cell in made.cells if "nbgrader" in cell.metadata
    }
    answer, test = by_id[GRADER_ID], by_id[f"{GRADER_ID}-test"]
    exec(answer + "\n" + test, {"check": check})
    with pytest.raises(AssertionError):
        exec(student_code(answer) + "\n" + test, {"check": check})


def test_the_folders_of_the_graders_are_written_and_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(["lesson", "export", "4", "--nbgrader", "n/source", "--otter", "o"]) == 0
    said = capsys.readouterr().out
    assert said.count("wrote ") == said.count("is there already") == 2
    for made in ("n/source/04_replicas/04_replicas.ipynb", "o/04_replicas/04_replicas.ipynb"):
        assert (tmp_path / made).is_file()
    assert cli.main(["lesson", "export", "4"]) == 2
    assert "name a folder with --nbgrader DIR or --otter DIR" in capsys.readouterr().err


# ---- reports -------------------------------------------------------------------------------------------


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A folder with lesson 00, of which one exercise of four is answered, and files of keys."""
    code = 'import math\n\ncheck("00.2", math.log)'
    nbformat.write(new_notebook(cells=[new_code_cell(code)]), tmp_path / "00_tour.ipynb")
    for name, key in (("key", "secret of a teacher"), ("other", "another of a teacher")):
        (tmp_path / name).write_text(key)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_says_what_is_right_and_a_change_of_it_is_seen(lessons, capsys):
    assert cli.main(["lesson", "report", ".", "key", "--seed", "3"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    exercises = report["lessons"]["00_tour"]["exercises"]
    assert [each["right"] for each in exercises.values()] == [False, True, False, False]
    assert report["seed"] == 3
    for name, said, key, code in (
        ("same", text, "key", 0),
        ("changed", text.replace('"right": false', '"right": true', 1), "key", 1),
        ("key", text, "other", 1),
    ):
        (lessons / f"{name}.json").write_text(said)
        assert cli.main(["lesson", "report", f"{name}.json", key]) == code
        assert ("does not fit" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([".", "absent"], "absent can't be read: No such file"),
        (["absent", "key"], "absent can't be read: No such file"),
        (["key", "key"], "key is no report"),
        (["empty", "key"], "empty can't be read: Is a directory; name a folder with lessons such as"),
    ],
)
def test_what_a_report_cannot_be_made_of_is_named(words, said, lessons, capsys):
    (lessons / "empty").mkdir()
    assert cli.main(["lesson", "report", *words]) == 2
    assert said in capsys.readouterr().err


# ---- the capstone --------------------------------------------------------------------------------------


def submitted(folder, name, seconds):
    rows = [
        {"split": "train", "step": s, "loss": 1.0, "wall_time": 100.0 + s * seconds / 20} for s in (0, 20)
    ]
    make_run(folder, name, rows=[*rows, evaluation("test", 20, 0.999)])


def board(folder, capsys):
    """Return the rows of the board."""
    assert cli.main(["lesson", "board", str(folder)]) == 0
    _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    return rows


def test_the_fastest_verified_run_that_reaches_the_goal_is_first(tmp_path, monkeypatch, capsys):
    measured = {"slow": 0.99, "fast": 0.971, "near": 0.969, "far": 0.5, "changed": 0.99}
    for name, seconds in zip(measured, (300, 100, 20, 10, 5), strict=True):
        submitted(tmp_path, name, seconds)
    monkeypatch.setattr(
        teachers,
        "_verify",
        lambda run: (False, "no: 1 change") if run.name == "changed" else (True, "yes"),
    )
    monkeypatch.setattr(teachers, "measured_accuracy", lambda run: measured[run.name])
    rows = board(tmp_path, capsys)
    assert [row[:2] for row in rows] == [
        ["1", "fast"], ["2", "slow"], ["–", "near"], ["–", "far"], ["–", "changed"],
    ]  # fmt: skip
    assert [row[3] for row in rows] == ["97.10%", "99.00%", "96.90%", "50.00%", "–"]
    assert rows[-1][-3:] == ["no:", "1", "change"]


@pytest.mark.long
def test_an_accuracy_written_by_hand_does_not_count(smoke_copy, shapes, tmp_path, monkeypatch, capsys):
    run = RunDirectory(smoke_copy)
    text = run.metrics_path.read_text()
    own = next(row for row in map(json.loads, text.splitlines()) if row["split"] == "test")["accuracy"]
    assert own < teachers.GOALS["shapes"]
    run.metrics_path.write_text(text.replace(f'"accuracy": {own}', '"accuracy": 0.999'))
    (smoke_copy / "predictions" / "test.json").unlink()
    files = {path: path.read_bytes() for path in smoke_copy.rglob("*") if path.is_file()}
    monkeypatch.setattr(teachers, "_verify", lambda run: (True, "steps only"))
    [[place, name, data, accuracy, *_]] = board(tmp_path, capsys)
    assert (place, name, data, accuracy) == ("–", "smoke", "shapes", f"{own:.2%}")
    assert {path: path.read_bytes() for path in smoke_copy.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        ("no certificate: only\nunchanged\nequal", 0, (True, "steps only")),
        ("certificate of step 20\nbit-equal", 0, (True, "yes")),
        ("certificate of step 20\nline 3 was changed", 1, (False, "no: line 3 was changed")),
    ],
)
def test_what_verify_prints_is_one_word_or_the_reason(printed, code, said, tmp_path, monkeypatch):
    command, asked = [sys.executable, "-c", f"print({printed!r}); raise SystemExit({code})"], []
    monkeypatch.setattr(teachers, "python_command", lambda *words: asked.append(words) or command)
    monkeypatch.setattr(RunDirectory, "checkpoint_steps", lambda run: [10, 20])
    assert teachers._verify(RunDirectory(tmp_path)) == said
    assert asked[0][-4:] == ("--from", "0", "--steps", "20"), "all steps, up to the weights that count"


def test_a_run_that_cannot_be_verified_has_the_reason_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    submitted(tmp_path / "runs", "first", 100)
    assert cli.main(["lesson", "board", str(tmp_path / "runs")]) == 0
    assert "  no: labkit: error: " in capsys.readouterr().out
    assert cli.main(["lesson", "board", str(tmp_path / "home")]) == 2
    assert "has no run directory" in capsys.readouterr().err
