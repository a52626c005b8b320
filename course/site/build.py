"""The folders of a build, the executions of lessons, and the call of Sphinx, which ``conf.py`` configures."""

import contextlib
import io
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from labkit.errors import InputError
from labkit.notebook.files import course_files

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Lesson:
    """A lesson's source, and its execution or None. ``is_older``: the source has changed since then."""

    notebook: Any
    executed: Any
    is_older: bool


class Paths:
    """The folders of one build.

    Args:
        root: the checkout, with ``README.md``, ``docs`` and ``notebooks``.
        build: for everything that is made.

    Attributes:
        notebooks: the sources of the lessons.
        overview: the document with the table of lessons.
        executed: the executed notebooks.
        home: ``LABKIT_HOME`` of the lessons, so that their runs are not among the user's.
        site: what Sphinx writes; open its ``index.html``.
    """

    def __init__(self, root: Path = ROOT, build: Path = ROOT / "build" / "course") -> None:
        self.root, self.build = root, build
        self.notebooks, self.overview = root / "notebooks", root / "docs" / "course.md"
        self.executed, self.home, self.site = build / "notebooks", build / "home", build / "site"

    def lesson(self, source: Path) -> Lesson:
        """Read a lesson of ``notebooks`` and its execution."""
        notebook, executed = nbformat.read(source, as_version=4), self.executed / source.name
        if not executed.exists():
            return Lesson(notebook, None, False)
        ran = nbformat.read(executed, as_version=4)
        code = [[cell.source for cell in each.cells if cell.cell_type == "code"] for each in (notebook, ran)]
        return Lesson(notebook, ran, code[0] != code[1])


def build_site(paths: Paths) -> list[str]:
    """Run Sphinx.

    Returns a line for each lesson whose outputs are missing or older than its source.
    Raises InputError if Sphinx fails or warns, with the path of its messages.
    """
    from sphinx.cmd.build import build_main

    staged = paths.build / ".site.new"
    shutil.rmtree(staged, ignore_errors=True)
    said = io.StringIO()
    words = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-c", str(Path(__file__).parent)]
    words += ["-D", f"build={paths.build}", "-d", str(paths.build / "doctrees"), str(paths.root), str(staged)]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its extensions, about versions to come
        code = build_main(words)
    log = paths.build / "sphinx.log"
    log.write_text(said.getvalue(), encoding="utf-8")
    if code:
        raise InputError(f"Sphinx found something to fix; its messages are in {log}")
    shutil.rmtree(paths.site, ignore_errors=True)
    staged.replace(paths.site)
    notes = []
    for source in course_files(paths.notebooks):
        lesson = paths.lesson(source)
        if lesson.executed is None:
            notes.append(f"{source.stem} was never executed: its page has no outputs")
        if lesson.is_older:
            notes.append(f"{source.stem} has changed since it was executed: its page shows the older one")
    return notes
