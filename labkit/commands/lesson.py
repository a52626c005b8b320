"""``labkit lesson``: the lessons, a copy to work in, and the check of an exercise."""

import argparse
import os
from pathlib import Path
from typing import Any

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, local_path
from labkit.commands.terminal.text_tables import print_table
from labkit.errors import InputError

__all__ = ["declare_check", "declare_list", "declare_start"]


def declare_list(parser: Parser) -> Run:
    """Declare nothing: ``labkit lesson list`` has no flags."""
    return _list


def _list(options: argparse.Namespace) -> int:
    """Print number, name and title of each lesson. Returns 0."""
    from labkit.lessons.source import lesson_paths, read_notebook

    rows = []
    for path in lesson_paths():
        first = read_notebook(path).cells[0].source
        rows.append((path.stem, first.splitlines()[0].lstrip("# ")))
    print_table(("lesson", "title"), rows)
    print("\nlabkit lesson start LESSON writes a copy to work in")
    return 0


def declare_start(parser: Parser) -> Run:
    """Declare the flags of ``labkit lesson start``."""
    parser.add_argument("lesson", metavar="LESSON", nargs="*", help="Numbers or names. Default: all lessons.")
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
    import nbformat

    from labkit.lessons.source import lesson_path, lesson_paths, read_notebook, student_notebook

    sources = [lesson_path(name) for name in options.lesson] or lesson_paths()
    folder = Path(options.folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            target = folder / source.name
            if target.exists():
                print(f"{target} is there already and stays as it is; delete it to start anew")
                continue
            partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            nbformat.write(student_notebook(read_notebook(source)), partial)
            partial.replace(target)
            print(f"wrote {target}")
    except OSError as error:
        raise InputError(
            f"--folder {folder} can't be written: {error.strerror}; name a folder of yours"
        ) from None
    print(f"open them with: jupyter lab {folder}")
    return 0


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
    from labkit.lessons.source import exercise_cells, read_notebook
    from labkit.lessons.verdict import Checked, exercise

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
        print(f"✗ exercise {found.number}: the cell raised {type(error).__name__}: {error}")
        if isinstance(error, NameError):
            print("  the cell is run alone: import and define in it what it uses")
    return 0 if error is None and verdicts and all(verdicts) else 1


def run_exercise_cell(source: str, verdicts: list[Any]) -> Exception | None:
    """Run the code of an exercise's cell alone, and append each verdict. Returns what it raised, or None."""
    from labkit.lessons.verdict import check

    def checked(number: str, answer: Any = None) -> Any:
        verdicts.append(check(number, answer))
        return verdicts[-1]

    try:
        exec(compile(source, "<your cell>", "exec"), {"__name__": "__main__", "check": checked})
    except Exception as error:
        return error
    return None


def _notebook(given: str | None, number: str) -> Path:
    from labkit.lessons.verdict import LESSONS

    name = f"{number[:2]}_{LESSONS[int(number[:2])]}.ipynb"
    if given is not None:
        return Path(given).expanduser()
    for path in (Path("lessons") / name, Path(name)):
        if path.is_file():
            return path
    raise InputError(
        f"no {name} in ./lessons or in this folder; write it with labkit lesson start {number[:2]}, or name "
        "the file with --notebook"
    )
