"""``labkit lesson``: the lessons, a copy to work in, and the check of an exercise."""

import argparse
import linecache
import os
from pathlib import Path
from typing import Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError, require_extra
from labkit.home import expanded
from labkit.startup.quiet_import import import_tensorflow

__all__ = ["declare_check", "declare_list", "declare_start", "run_exercise_cell"]

NEEDS = ("nbformat",)
SECONDS = 120  # of an exercise's cell
CELL = "<your cell>"


def declare_list(parser: Parser) -> Run:
    """Declare nothing: ``labkit lesson list`` has no flags."""
    return _list


def _list(options: argparse.Namespace) -> int:
    """Print number, name and title of each lesson. Returns 0."""
    from labkit.notebook.files import lesson_files, read_notebook

    require_extra("notebook", NEEDS, "labkit lesson list")
    rows = []
    for path in lesson_files():
        first = read_notebook(path).cells[0].source
        rows.append((path.stem, first.splitlines()[0].lstrip("# ")))
    print_table(("lesson", "title"), rows)
    print("\nlabkit lesson start LESSON writes a copy to work in")
    return 0


def declare_start(parser: Parser) -> Run:
    """Declare the flags of ``labkit lesson start``."""
    parser.add_argument(
        "lesson",
        metavar="LESSON",
        nargs="*",
        help="Numbers or names. Default: all lessons, and the training notebook.",
    )
    parser.add_argument(
        "--folder",
        type=local_path,
        metavar="DIR",
        default="lessons",
        help="Where to write the copies. Default: lessons, in the current folder.",
    )
    return _start


def _start(options: argparse.Namespace) -> int:
    """Write a copy without solutions of each lesson that isn't there yet. Returns 0."""
    from labkit.notebook.files import choose_notebooks, course_files

    require_extra("notebook", NEEDS, "labkit lesson start")
    sources = choose_notebooks(options.lesson, course_files())
    folder = expanded(options.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            _copy(source, folder / source.name)
    except OSError as error:
        raise InputError(
            f"--folder {folder} can't be written: {error.strerror}; name a folder of yours"
        ) from None
    print(f"open them with: jupyter lab {folder}")
    return 0


def _copy(source: Path, target: Path) -> None:
    """Write the student's copy of ``source``, unless there is a ``target``: it may hold a student's work."""
    from course.lessons.source import student_notebook
    from labkit.notebook.files import read_notebook, write_notebook

    if os.path.lexists(target):
        print(f"{target} is there already and stays as it is; delete it to start anew")
        return
    write_notebook(student_notebook(read_notebook(source)), target)
    print(f"wrote {target}")


def declare_check(parser: Parser) -> Run:
    """Declare the flags of ``labkit lesson check``."""
    parser.add_argument("exercise", metavar="EXERCISE", help="Number of the exercise, such as 04.2.")
    parser.add_argument(
        "--notebook",
        type=local_path,
        metavar="FILE",
        help="The notebook with the answer. Default: the lesson's copy in ./lessons or in this folder.",
    )
    return _check


def _check(options: argparse.Namespace) -> int:
    """Run the saved cell of an exercise and print the verdict. Returns 0 if the answer is right, else 1."""
    from course.lessons.source import exercise_cells
    from course.lessons.verdict import Checked, exercise
    from labkit.notebook.files import read_notebook

    require_extra("notebook", NEEDS, "labkit lesson check")
    found = exercise(options.exercise)
    path = _notebook(options.notebook, found.number)
    source = exercise_cells(read_notebook(path)).get(found.number)
    if source is None:
        raise InputError(f'{path} has no cell with check("{found.number}", …); was the line deleted?')
    print(f"{found.number} {found.title} ({path})")
    verdicts: list[Checked] = []
    error = run_exercise_cell(source, verdicts)
    for verdict in verdicts:
        print(verdict)
    if error is not None:
        print(f"✗ exercise {found.number}: {_what_was_raised(error)}")
    elif found.number not in [verdict.number for verdict in verdicts]:
        print(f'✗ exercise {found.number}: the cell ended without check("{found.number}", …)')
    return int(error is not None or found.number not in [each.number for each in verdicts if each])


def run_exercise_cell(source: str, verdicts: list[Any]) -> BaseException | None:
    """Run the code of an exercise's cell alone, and append each verdict. Returns what it raised, or None.

    A cell that runs for over ``SECONDS`` is ended with ``course.lessons.time_limit.TooLong``.
    """
    from course import lessons
    from course.lessons.time_limit import TooLong, time_limit
    from course.lessons.verdict import check

    def checked(number: str, answer: Any = None) -> Any:
        verdicts.append(check(number, answer))
        return verdicts[-1]

    before = lessons.check
    lessons.check = checked  # for a cell that imports it
    # For AutoGraph, which reads the source of a tf.function.
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    try:
        if "tensorflow" in source or "keras" in source:
            import_tensorflow()  # without its messages, and its time isn't the cell's
        with time_limit(SECONDS):
            exec(compile(source, CELL, "exec"), {"__name__": "__main__", "check": checked})
    except (Exception, SystemExit, TooLong) as error:
        return error
    finally:
        lessons.check = before
        linecache.cache.pop(CELL, None)
    return None


def _what_was_raised(error: BaseException) -> str:
    """Return one line that says what a cell raised, and what to do where that is known."""
    from course.lessons.time_limit import TooLong

    if isinstance(error, TooLong):
        return f"the cell ran for over {SECONDS} s; does a loop never end?"
    text = f"the cell raised {type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, NameError):
        return f"{text}; the cell is run alone: import and define in it what it uses"
    if isinstance(error, SyntaxError):
        return f"{text}; % and ! commands of notebooks don't work here"
    return text


def _notebook(given: str | None, number: str) -> Path:
    from course.lessons.verdict import LESSONS

    name = f"{number[:2]}_{LESSONS[int(number[:2])]}.ipynb"
    if given is not None:
        return expanded(given)
    for path in (Path("lessons") / name, Path(name)):
        if path.is_file():
            return path
    raise InputError(
        f"no {name} in ./lessons or in this folder; write it with labkit lesson start {number[:2]}, or name "
        "the file with --notebook"
    )
