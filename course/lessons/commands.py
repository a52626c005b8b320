"""``labkit lesson``: the lessons, a copy to work in, and the check of an exercise."""

import copy
import importlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from labkit.commands.flags import Flag, LocalPath
from labkit.errors import InputError, require_extra
from labkit.home import expanded
from labkit.tables import print_table

NEEDS = ("nbformat",)
PROJECTS = {"project.1": "data_parallel", "project.2": "link_times"}  # the modules that check them


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
    target = expanded(folder)
    sources = choose_notebooks(lesson, course_files())
    write_copies({source: target / source.name for source in sources}, student_notebook, f"--folder {target}")
    print(f"open them with: jupyter lab {target}")
    return 0


def write_copies(targets: Mapping[Path, Path], changed: Callable[[Any], Any], flag: str) -> None:
    """Write the changed copy of each notebook, unless its target is there: it may hold somebody's work.

    Args:
        targets: by source.
        changed: makes the copy, from what nbformat reads.
        flag: what chose the folder, for the error.

    Raises InputError if a target can't be written.
    """
    from labkit.notebook.files import read_notebook, write_notebook

    for source, target in targets.items():
        if os.path.lexists(target):
            print(f"{target} is there already and stays as it is; delete it to start anew")
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_notebook(changed(read_notebook(source)), target)
        except OSError as error:
            raise InputError(f"{flag} can't be written: {error.strerror}; name a folder of yours") from None
        print(f"wrote {target}")


def lesson_check(
    exercise: str,
    *,
    notebook: Annotated[LocalPath | None, Flag(metavar="FILE")] = None,
    program: Annotated[LocalPath | None, Flag(metavar="FILE")] = None,
    seed: int = 0,
) -> int:
    """Run the saved cell of an exercise, or of each in a lesson, and print the verdict.

    Returns 0 if all answers are right, else 1.

    Args:
        exercise: Number of the exercise, such as 04.2, or of a lesson, such as 04, or project.1 or project.2.
        notebook: The notebook with the answers. Default: the lesson's copy in ./lessons or in this folder.
        program: The program of a project.
        seed: Draws other inputs for the answers than the lesson does. Default: 0, the lesson's.
    """
    if exercise in PROJECTS:
        return _check_program(exercise, program, seed)
    from course.lessons import verdict
    from labkit.notebook.files import read_notebook

    require_extra("notebook", NEEDS, "labkit lesson check")
    if is_lesson := re.fullmatch(r"\d\d", exercise) is not None and int(exercise) < len(verdict.LESSONS):
        found = verdict.exercises(int(exercise))
    else:
        found = (verdict.exercise(exercise),)
    path = _notebook(notebook, exercise)
    cells = exercise_cells(read_notebook(path))
    if not is_lesson and exercise not in cells:
        raise InputError(f"{path} has {_no_cell(exercise)}")
    print(f"{exercise} {'all exercises' if is_lesson else found[0].title} ({path})")
    right = 0
    for each in found:
        checked = check_saved(each.number, cells, seed)
        print(checked, flush=True)
        right += bool(checked)
    if is_lesson:
        print(f"{right} of {len(found)} are right")
    return int(right < len(found))


def _check_program(project: str, program: str | None, seed: int) -> int:
    """Run the program of a project and print the verdict. Returns 0 if it does what is asked, else 1."""
    from course.lessons.verdict import Checked, Wrong

    if program is None:
        raise InputError(f"{project} is a program; name your program with --program FILE")
    path = expanded(program)
    if not path.is_file():
        raise InputError(f"there is no {path}; name your program with --program FILE")
    check_program = importlib.import_module(f"course.lessons.{PROJECTS[project]}").check_program
    try:
        verdict = Checked(project, True, check_program(path.absolute(), seed))
    except Wrong as wrong:
        verdict = Checked(project, False, str(wrong))
    print(verdict)
    return int(not verdict)


def check_saved(number: str, cells: dict[str, str], seed: int = 0) -> Any:
    """Return the verdict on a saved answer, from the code of each exercise's cell."""
    from course.lessons.examine import examine
    from course.lessons.verdict import Checked

    if number not in cells:
        return Checked(number, False, _no_cell(number))
    return examine(number, cells[number], seed=seed)


def _no_cell(number: str) -> str:
    return f'no cell with check("{number}", …); was the line deleted?'


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
