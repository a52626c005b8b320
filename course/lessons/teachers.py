"""For teachers: lessons as assignments of nbgrader and Otter-Grader, signed reports, the capstone's board.

Formats: https://nbgrader.readthedocs.io/en/stable/contributor_guide/metadata.html and
https://otter-grader.readthedocs.io/en/latest/otter_assign/notebook_format.html
"""

import ast
import copy
import hashlib
import hmac
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from course.lessons.commands import CHECK, NEEDS, check_saved, exercise_cells, write_copies
from labkit.commands.flags import Flag, LocalPath
from labkit.errors import InputError, require_extra
from labkit.home import expanded
from labkit.run_directory import RunDirectory
from labkit.startup.child import python_command
from labkit.startup.process import Child
from labkit.tables import print_table
from labkit.version import VERSION

Folder = Annotated[LocalPath | None, Flag(metavar="DIR")]
SIGNATURE = "hmac_sha256"
# Accuracies on the test set that the capstone asks for, by the data set.
GOALS = {"cifar10": 0.80, "shapes": 0.97}
VERIFY_SECONDS = 3600  # of ``labkit verify`` of one submission


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


# ---- reports -------------------------------------------------------------------------------------------


def lesson_report(
    path: Annotated[LocalPath, Flag(metavar="FOLDER")],
    key: Annotated[LocalPath, Flag(metavar="KEY")],
    *,
    seed: int = 0,
) -> int:
    """Check all answers of a folder of lessons and print a signed report; or check a report's signature.

    The signature shows that somebody who has the key made the report, and that it wasn't changed since. It
    doesn't show who wrote the answers. So whoever grades makes the report, and keeps the key.

    Returns 0; 1 if a report's signature doesn't fit.

    Args:
        path: Folder with copies of lessons, or the file of a report.
        key: File with the secret of the signature.
        seed: Draws other inputs for the answers than the lessons do. Default: 0, the lessons'.
    """
    from labkit.notebook.files import lesson_files

    require_extra("notebook", NEEDS, "labkit lesson report")
    found = expanded(path)
    lessons = [found / source.name for source in lesson_files() if (found / source.name).is_file()]
    try:
        secret = expanded(key).read_bytes()
        report = {} if lessons else json.loads(found.read_bytes())
        given = report.pop(SIGNATURE, "")
    except OSError as error:
        raise InputError(
            f"{error.filename} can't be read: {error.strerror}; name a folder with lessons such as "
            "00_tour.ipynb or a report, and the file of a key"
        ) from None
    except (ValueError, AttributeError):
        raise InputError(f"{path} is no report; name what labkit lesson report has printed") from None
    if not lessons:
        fits = hmac.compare_digest(str(given), _signature(report, secret))
        print(f"the signature of {path} {'fits' if fits else 'does not fit: another key, or it was changed'}")
        return int(not fits)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    checked = {lesson.stem: _checked(lesson, seed) for lesson in lessons}
    report = {"labkit": VERSION, "made": made, "seed": seed, "lessons": checked}
    print(json.dumps({**report, SIGNATURE: _signature(report, secret)}, indent=2))
    return 0


def _checked(path: Path, seed: int) -> dict[str, Any]:
    """Return the digest of a lesson, and whether its answers are right."""
    from course.lessons.verdict import exercises
    from labkit.notebook.files import read_notebook

    cells = exercise_cells(read_notebook(path))
    verdicts = [check_saved(each.number, cells, seed) for each in exercises(int(path.name[:2]))]
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "exercises": {each.number: {"right": each.right, "verdict": each.text} for each in verdicts},
    }


def _signature(report: Mapping[str, Any], secret: bytes) -> str:
    """Return the HMAC-SHA256 (RFC 2104) of a report's JSON with sorted keys."""
    return hmac.digest(secret, json.dumps(report, sort_keys=True).encode(), "sha256").hex()


# ---- the capstone --------------------------------------------------------------------------------------


def lesson_board(folder: Annotated[LocalPath, Flag(metavar="FOLDER")]) -> int:
    """Print the capstone's table: a row for each run in a folder, the fastest that reaches its goal first.

    The goal is 80 % of the test set on cifar10, and 97 % on shapes. `labkit verify` makes all steps of each
    run again, which takes as long as its training, an hour at most. If they agree, the board evaluates the
    checkpoint that `labkit evaluate` takes. The seconds are those that the run recorded.

    Returns 0. Raises InputError if there is no run in the folder.

    Args:
        folder: Folder whose folders are the submitted run directories.
    """
    from labkit.config.config import describe
    from labkit.run_directory.directory import list_runs
    from labkit.run_directory.summary import Summaries

    runs = list_runs(expanded(folder))
    if not runs:
        raise InputError(f"{folder} has no run directory; collect the submissions there, each in a folder")
    ranked: list[tuple[bool, float, tuple[str, ...]]] = []
    for run, summary in zip(runs, Summaries(describe).of(runs), strict=True):
        verified, said = _verify(run)
        accuracy, seconds = 0.0, summary.duration or math.inf
        if verified:
            try:
                accuracy = measured_accuracy(run)
            except InputError as error:
                said = f"no: {error}"
        missed = accuracy < GOALS.get(summary.dataset or "", math.inf)
        cores = run.read_environment().get("threads", {}).get("cores", "–")
        percent = f"{accuracy:.2%}" if accuracy else "–"
        shown = (run.name, summary.dataset or "–", percent, f"{seconds:,.0f}", str(cores), said)
        ranked.append((missed, -accuracy if missed else seconds, shown))
    header = ("place", "run", "data set", "accuracy", "seconds", "cores", "verified")
    rows = [
        ("–" if missed else str(place), *shown) for place, (missed, _, shown) in enumerate(sorted(ranked), 1)
    ]
    print_table(header, rows, right=("accuracy", "seconds", "cores"))
    return 0


def _verify(run: RunDirectory) -> tuple[bool, str]:
    """Return whether ``labkit verify`` finds a run as it says, and what it found, in a few words.

    It makes all steps from the initial weights to the last checkpoint.
    """
    flags = ("--from", "0", "--steps", str(max(run.checkpoint_steps(), default=1)))
    with Child(python_command("-m", "labkit", "verify", run.path.absolute(), *flags)) as child:
        code = child.wait(VERIFY_SECONDS)
        child.kill()
        lines = ["", *child.lines()]
    if code == 0:
        return True, "steps only" if "no certificate" in lines[1] else "yes"
    return False, "no: it took too long" if code is None else f"no: {lines[-1]}"


def measured_accuracy(run: RunDirectory) -> float:
    """Return the accuracy on the test set of a run's best checkpoint on validation, 0 to 1; writes nothing.

    Raises InputError where the checkpoint or the data set is missing.
    """
    from labkit.run import tensorflow_left_as_it_was
    from labkit.startup.quiet_import import import_tensorflow
    from labkit.training.plan import plan_evaluation

    with tensorflow_left_as_it_was():
        plan = plan_evaluation(run, "test", checkpoint="best")
        import_tensorflow()
        from labkit.training.checkpoints import CheckpointStore
        from labkit.training.follow import CheckpointEvaluator

        evaluator = CheckpointEvaluator(plan, "test", num_gpus=0)
        evaluator.load(CheckpointStore(run.checkpoints_path).step_of("best"))
        evaluation, _ = evaluator.evaluate()
    return float(evaluation.row()["accuracy"])
