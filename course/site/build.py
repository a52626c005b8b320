"""Builds the site with Sphinx: pages of lessons, the documents, and the reference of the public interface."""

import contextlib
import io
import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from course.site.counts import count_source
from course.site.pages import write_page
from labkit.errors import InputError
from labkit.notebook.files import course_files

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Paths:
    """The folders of one build.

    Args:
        root: the checkout, with ``README.md`` and ``docs``.
        notebooks: the sources of the lessons.
        build: for everything that is made.
        overview: the document with the table of lessons.
    """

    root: Path = ROOT
    notebooks: Path = ROOT / "notebooks"
    build: Path = ROOT / "build" / "course"
    overview: Path = ROOT / "docs" / "course.md"

    @property
    def executed(self) -> Path:
        """The executed notebooks."""
        return self.build / "notebooks"

    @property
    def home(self) -> Path:
        """``LABKIT_HOME`` of the lessons: their runs are not among the user's."""
        return self.build / "home"

    @property
    def pages(self) -> Path:
        """What Sphinx reads."""
        return self.build / "pages"

    @property
    def site(self) -> Path:
        """What Sphinx writes: open its ``index.html``."""
        return self.build / "site"


# Each with the documents in the order of the navigation.
GUIDES = (
    "quick-start",
    "data",
    "training",
    "callbacks",
    "clusters",
    "models",
    "dashboard",
    "tensorboard",
    "python",
)
MODULES = {
    "labkit": "The public interface",
    "course.lessons": "Lessons",
    "labkit.figures.widgets": "Widgets",
    "labkit.figures": "Figures",
}
BESIDE = ("CONTRIBUTING.md", "benchmarks/README.md", "deploy/README.md")
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def build_site(paths: Paths) -> list[str]:
    """Make the pages and run Sphinx.

    Returns a line for each lesson whose outputs are missing or older than its source.
    Raises InputError if Sphinx fails or warns, with the path of its messages.
    """
    shutil.rmtree(paths.pages, ignore_errors=True)
    notes = _write_lessons(paths)
    _write_documents(paths)
    _write_reference(paths.pages / "api")
    _write_front(paths)
    _run_sphinx(paths)
    return notes


def _write_lessons(paths: Paths) -> list[str]:
    notes = []
    stale = "This page shows an execution of an older version of the lesson."
    folder = paths.pages / "notebooks"
    folder.mkdir(parents=True)
    shown_as = {str(paths.home.resolve()): "~/.labkit", str(paths.root): "~/labkit"}
    for source in course_files(paths.notebooks):
        notebook = nbformat.read(source, as_version=4)
        executed, is_older = paths.executed / source.name, False
        if not executed.exists():
            notes.append(f"{source.stem} was never executed: its page has no outputs")
        else:
            ran = nbformat.read(executed, as_version=4)
            if is_older := _sources(notebook) != _sources(ran):
                notes.append(f"{source.stem} has changed since it was executed: its page shows the older one")
            notebook = ran
        page = folder / f"{source.stem}.md"
        write_page(notebook, page, shown_as)
        if is_older:
            page.write_text(f"{page.read_text(encoding='utf-8')}\n*{stale}*\n", encoding="utf-8")
        _follow_links(page, source, paths)
    return notes


def _sources(notebook: Any) -> list[str]:
    """Return the code of a notebook, without what papermill added."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.source for cell in code if "injected-parameters" not in cell.metadata.get("tags", ())]


def _write_documents(paths: Paths) -> None:
    """Copy the documents, and what README and they link to."""
    others = [paths.root / name for name in BESIDE]
    for source in (*paths.root.glob("docs/*.md"), *filter(Path.is_file, others)):
        page = paths.pages / source.relative_to(paths.root)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = (paths.overview if source.name == "course.md" else source).read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8")
        _follow_links(page, source, paths)


def _follow_links(page: Path, source: Path, paths: Paths) -> None:
    """Point the links of a page to other pages, and copy the files that it links to."""

    notebooks = [path.resolve() for path in course_files(paths.notebooks)]

    def follow(match: re.Match[str]) -> str:
        target, mark, heading = match[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[1]
        path = (source.parent / target).resolve()
        if path in notebooks:
            return f"{target.removesuffix('.ipynb')}.md{mark}{heading}"
        if path == paths.root / "README.md":
            return f"{target.removesuffix('README.md')}index.md{mark}{heading}"
        if path.is_file() and path.suffix != ".md":
            copy = (page.parent / target).resolve()
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        return match[1]

    page.write_text(LINK.sub(follow, page.read_text(encoding="utf-8")), encoding="utf-8")


def _write_reference(folder: Path) -> None:
    folder.mkdir()
    for module, title in MODULES.items():
        heading = f"{title}: ``{module}``"
        lines = [heading, "=" * len(heading), "", f".. automodule:: {module}"]
        if (ROOT / module.replace(".", "/")).is_dir():  # a package: its names are those of its modules
            lines.append("   :imported-members:")
        (folder / f"{module}.rst").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _write_front(paths: Paths) -> None:
    """Make README the front page, with the navigation of the site."""
    source, page = paths.root / "README.md", paths.pages / "index.md"
    page.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    _follow_links(page, source, paths)
    documents = [path.stem for path in sorted(paths.root.glob("docs/*.md"))]
    others = [name for name in documents if name not in (*GUIDES, "course", "index")]
    lessons = [_entry(path) for path in course_files(paths.notebooks)]
    parts = {
        "Course": ["docs/course", *lessons],
        "Guides": [f"docs/{name}" for name in GUIDES if name in documents],
        "Python interface": [f"api/{module}" for module in MODULES],
        "Reference": ["docs/index", *(f"docs/{name}" for name in others)],
        "More": [name.removesuffix(".md") for name in BESIDE if (paths.pages / name).is_file()],
    }
    trees = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])
        for caption, entries in parts.items()
    ]
    page.write_text("\n\n".join([page.read_text(encoding="utf-8"), *trees]) + "\n", encoding="utf-8")


def _entry(source: Path) -> str:
    """Return the line of a lesson in the navigation, which begins with its number."""
    title = count_source(nbformat.read(source, as_version=4)).title
    number = source.stem[:2]
    return f"{f'{number} ' if number.isdigit() else ''}{title} <notebooks/{source.stem}>"


def _run_sphinx(paths: Paths) -> None:
    from sphinx.cmd.build import build_main

    staged = paths.build / ".site.new"
    shutil.rmtree(staged, ignore_errors=True)
    said = io.StringIO()
    words = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-c", str(ROOT / "course" / "site")]
    words += ["-d", str(paths.build / "doctrees"), str(paths.pages), str(staged)]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its extensions, about versions to come
        code = build_main(words)
    log = paths.build / "sphinx.log"
    log.write_text(said.getvalue(), encoding="utf-8")
    if code:
        raise InputError(f"Sphinx found something to fix; its messages are in {log}")
    shutil.rmtree(paths.site, ignore_errors=True)
    staged.replace(paths.site)
