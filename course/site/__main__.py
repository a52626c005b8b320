"""``python -m course.site build [LESSON…]``, ``check``, ``table``, ``keep [LESSON…]`` and ``strip FILE…``."""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from course.site.build import Paths, build_site
from course.site.check import problems
from course.site.execute import SECONDS, execute
from course.site.strip import keep, strip
from course.site.table import write_table
from labkit.errors import InputError
from labkit.notebook.files import choose_notebooks, course_files
from labkit.startup.quiet_import import import_tensorflow


def main(arguments: Sequence[str] | None = None, paths: Paths | None = None) -> int:
    """Run one of the commands. Returns the exit code: 0 done, 1 something is wrong, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m course.site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="execute lessons, build the site and check it")
    builder.add_argument(
        "lesson", nargs="*", help="execute these, and take the others as they are; default: all"
    )
    builder.add_argument(
        "--seconds", type=float, default=SECONDS, help="for each lesson (default: %(default)s)"
    )
    builder.add_argument("--no-execute", action="store_true", help="take all lessons as they are")
    commands.add_parser("check", help="check the site that was built")
    commands.add_parser("table", help="write the table of lessons in docs/course.md")
    keeper = commands.add_parser("keep", help="take the outputs that nbval compares from executed lessons")
    keeper.add_argument("lesson", nargs="*", help="default: all")
    stripper = commands.add_parser("strip", help="remove outputs from notebooks")
    stripper.add_argument("notebook", nargs="*", type=Path)
    stripper.add_argument("--check", action="store_true", help="only name those that have outputs")
    options = parser.parse_args(arguments)
    paths = paths or Paths()
    try:
        if options.command == "build":
            return build(paths, None if options.no_execute else options.lesson, options.seconds)
        if options.command == "check":
            return _check(paths)
        if options.command == "table":
            import_tensorflow()
            _say(write_table(paths))
            return 0
        if options.command == "keep":
            return _keep(paths, options.lesson)
        return int(_say(strip(options.notebook, check=options.check)) and options.check)
    except InputError as error:
        print(f"course: error: {error}", file=sys.stderr)
        return 2


def build(paths: Paths, names: Sequence[str] | None, seconds: float) -> int:
    """Execute lessons, write their table, build the site and check it.

    Args:
        paths: the folders.
        names: of the lessons to execute; empty: all; None: none.
        seconds: the limit of each lesson.

    Returns 0, or 1 if a lesson failed or the site has a problem.
    """
    failures = []
    if names is not None:
        chosen = choose_notebooks(names, course_files(paths.notebooks))
        shutil.rmtree(paths.home / "runs", ignore_errors=True)  # a finished run wouldn't be trained again
        for source in chosen:
            print(f"executing {source.stem}", flush=True)
            started = time.monotonic()
            failure = execute(source, paths.executed / source.name, paths.home, seconds=seconds)
            print(f"  {'failed' if failure else 'done'} after {time.monotonic() - started:.0f} s", flush=True)
            failures += [failure] if failure else []
    import_tensorflow()  # for stubs, without its messages
    try:
        _say([*write_table(paths), *build_site(paths)])
        code = _check(paths)
        print(f"open {paths.site / 'index.html'}")
    except InputError as error:
        print(f"course: error: {error}", file=sys.stderr)
        code = 1
    _say([f"FAILED {failure}" for failure in failures])
    return 1 if failures else code


def _keep(paths: Paths, names: Sequence[str]) -> int:
    for source in choose_notebooks(names, course_files(paths.notebooks)):
        executed = paths.executed / source.name
        if not executed.exists():
            print(f"{source.stem} was never executed: make course ARGS={source.stem}")
        else:
            _say([f"{source.stem}, cell {cell}: new output" for cell in keep(source, executed)])
    return 0


def _check(paths: Paths) -> int:
    found = problems(paths.site)
    if not found:
        print(f"{paths.site}: links, headings, alternative texts and folded answers are as they should be")
    return int(_say(found))


def _say(lines: Sequence[str]) -> bool:
    """Print lines. Returns whether there are any."""
    for line in lines:
        print(line)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
