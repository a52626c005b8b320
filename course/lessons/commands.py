"""``labkit lesson``: the lessons, a copy to work in, and the check of an exercise."""

import copy
import linecache
import os
import re
from pathlib import Path
from typing import Annotated, Any

from labkit.commands.flags import Flag, LocalPath
from labkit.errors import InputError, require_extra
from labkit.home import expanded
from labkit.startup.quiet_import import import_tensorflow
from labkit.tables import print_table

NEEDS = ("nbformat",)
SECONDS = 120  # of an exercise's cell
CELL = "<your cell>"


def lesson_list() -> int:
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


def lesson_start(*lesson: str, folder: Annotated[LocalPath, Flag(metavar="DIR")] = "lessons") -> int:
    """Write a copy without solutions of each lesson that isn't there yet. Returns 0.

    Args:
        lesson: Numbers or names. Default: all lessons, and the training notebook.
        folder: Where to write the copies. Default: lessons, in the current folder.
    """
    from labkit.notebook.files import choose_notebooks, course_files

    require_extra("notebook", NEEDS, "labkit lesson start")
    sources = choose_notebooks(lesson, course_files())
    target = expanded(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            _copy(source, target / source.name)
    except OSError as error:
        raise InputError(
            f"--folder {target} can't be written: {error.strerror}; name a folder of yours"
        ) from None
    print(f"open them with: jupyter lab {target}")
    return 0


def _copy(source: Path, target: Path) -> None:
    """Write the student's copy of ``source``, unless there is a ``target``: it may hold a student's work."""
    from labkit.notebook.files import read_notebook, write_notebook

    if os.path.lexists(target):
        print(f"{target} is there already and stays as it is; delete it to start anew")
        return
    write_notebook(student_notebook(read_notebook(source)), target)
    print(f"wrote {target}")


def lesson_check(exercise: str, *, notebook: Annotated[LocalPath | None, Flag(metavar="FILE")] = None) -> int:
    """Run the saved cell of an exercise and print the verdict. Returns 0 if the answer is right, else 1.

    Args:
        exercise: Number of the exercise, such as 04.2.
        notebook: The notebook with the answer. Default: the lesson's copy in ./lessons or in this folder.
    """
    from course.lessons.verdict import Checked
    from course.lessons.verdict import exercise as exercise_of
    from labkit.notebook.files import read_notebook

    require_extra("notebook", NEEDS, "labkit lesson check")
    found = exercise_of(exercise)
    path = _notebook(notebook, found.number)
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

    A cell that runs for over ``SECONDS`` is ended with ``course.lessons.verdict.TooLong``.
    """
    from course import lessons
    from course.lessons.verdict import TooLong, check, time_limit

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
    from course.lessons.verdict import TooLong

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


SOLUTION = re.compile(
    r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION[ \t]*$", re.DOTALL | re.MULTILINE
)
STUB = r"\1...  # your code"
CHECK = re.compile(r"""\bcheck\(\s*["'](\d\d\.\d)["']""")


def student_code(source: str) -> str:
    """Return the code of a cell with ``...`` in place of each solution."""
    return SOLUTION.sub(STUB, source)


def student_notebook(notebook: Any) -> Any:
    """Return a copy of a lesson without solutions and outputs."""
    result = copy.deepcopy(notebook)
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.source, cell.outputs, cell.execution_count = student_code(cell.source), [], None
            cell.metadata.pop("jupyter", None)  # the source hides its solutions
    return result


def exercise_cells(notebook: Any) -> dict[str, str]:
    """Return the code of each exercise's cell by the exercise's number."""
    found: dict[str, str] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for number in CHECK.findall(cell.source):
                found[number] = cell.source
    return found
