"""Builds the site with Sphinx: pages of lessons, the documents, and the reference of the public interface."""

import contextlib
import io
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import nbformat

from course.counts import count_source
from course.pages import write_page
from course.places import ROOT, Places
from labkit.errors import InputError

__all__ = ["build_site"]

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
    "labkit.lessons": "Lessons",
    "labkit.widgets": "Widgets",
    "labkit.plots": "Figures",
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def build_site(places: Places) -> list[str]:
    """Make the pages and run Sphinx.

    Returns a line for each lesson whose outputs are missing or older than its source.
    Raises InputError with Sphinx' messages if it fails or warns.
    """
    shutil.rmtree(places.pages, ignore_errors=True)
    notes = _write_lessons(places)
    _write_documents(places)
    _write_reference(places.pages / "api")
    _write_front(places)
    _run_sphinx(places)
    return notes


def _write_lessons(places: Places) -> list[str]:
    notes = []
    folder = places.pages / "notebooks"
    folder.mkdir(parents=True)
    shown_as = {str(places.home.resolve()): "~/.labkit", str(places.root): "~/labkit"}
    for source in places.all_notebooks():
        notebook = nbformat.read(source, as_version=4)
        executed = places.executed / source.name
        if not executed.exists():
            notes.append(f"{source.stem} was never executed: its page has no outputs")
        else:
            ran = nbformat.read(executed, as_version=4)
            if _sources(notebook) != _sources(ran):
                notes.append(f"{source.stem} has changed since it was executed: its page shows the older one")
            notebook = ran
        page = folder / f"{source.stem}.md"
        write_page(notebook, page, shown_as)
        _follow_links(page, source, places)
    return notes


def _sources(notebook: Any) -> list[str]:
    """Return the code of a notebook, without what papermill added."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.source for cell in code if "injected-parameters" not in cell.metadata.get("tags", ())]


def _write_documents(places: Places) -> None:
    """Copy the documents, and the two READMEs that they link to."""
    for source in (*places.root.glob("docs/*.md"), *places.root.glob("[bd]e*/README.md")):
        page = places.pages / source.relative_to(places.root)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = (places.overview if source.name == "course.md" else source).read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8")
        _follow_links(page, source, places)


def _follow_links(page: Path, source: Path, places: Places) -> None:
    """Point the links of a page to other pages, and copy the files that it links to."""

    notebooks = [path.resolve() for path in places.all_notebooks()]

    def follow(match: re.Match[str]) -> str:
        target, mark, heading = match[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[1]
        path = (source.parent / target).resolve()
        if path in notebooks:
            return f"{target.removesuffix('.ipynb')}.md{mark}{heading}"
        if path == places.root / "README.md":
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
        lines = [heading, "=" * len(heading), "", f".. automodule:: {module}", "   :imported-members:", ""]
        (folder / f"{module}.rst").write_text("\n".join(lines), encoding="utf-8")


def _write_front(places: Places) -> None:
    """Make README the front page, with the navigation of the site."""
    source, page = places.root / "README.md", places.pages / "index.md"
    page.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    _follow_links(page, source, places)
    documents = [path.stem for path in sorted(places.root.glob("docs/*.md"))]
    others = [name for name in documents if name not in (*GUIDES, "course", "index")]
    lessons = [_entry(path) for path in places.all_notebooks()]
    parts = {
        "Course": ["docs/course", *lessons],
        "Guides": [f"docs/{name}" for name in GUIDES if name in documents],
        "Python interface": [f"api/{module}" for module in MODULES],
        "Reference": ["docs/index", *(f"docs/{name}" for name in others)],
        "More": [str(path.relative_to(places.pages).with_suffix("")) for path in _readmes(places)],
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


def _readmes(places: Places) -> list[Path]:
    return sorted(places.pages.glob("*/README.md"))


def _run_sphinx(places: Places) -> None:
    from sphinx.cmd.build import build_main

    staged = places.build / ".site.new"
    shutil.rmtree(staged, ignore_errors=True)
    said = io.StringIO()
    words = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-c", str(ROOT / "course")]
    words += ["-d", str(places.build / "doctrees"), str(places.pages), str(staged)]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its extensions, about versions to come
        code = build_main(words)
    if code:
        raise InputError(f"Sphinx found something to mend:\n{said.getvalue()}")
    shutil.rmtree(places.site, ignore_errors=True)
    staged.replace(places.site)
