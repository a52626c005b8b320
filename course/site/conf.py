"""Sphinx' configuration. ``course.site.build`` calls Sphinx with it, for the folder of a checkout.

Sphinx reads the documents where they are. A lesson is read as Markdown of its execution, where there is one,
and the navigation is added to README, which is the front page.
"""

import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from course.site.build import Paths
from course.site.pages import page_of
from labkit.version import VERSION

project = "labkit"
copyright = "labkit's authors, Apache-2.0"
version = release = VERSION
language = "en"

root_doc = "README"
source_suffix = {".md": "markdown", ".ipynb": "markdown", ".rst": "restructuredtext"}
include_patterns = ["README.md", "docs/*.md", "course/site/api/*.rst", "notebooks/[0-9][0-9]_*.ipynb"]
include_patterns += [
    "notebooks/train.ipynb",
    "notebooks/experiments/*.ipynb",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "deploy/README.md",
]
exclude_patterns = [".*", "app", "build", "labkit", "tests"]  # Sphinx needn't look for documents there

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # the documents link to headings, as on GitHub
highlight_language = "none"  # blocks without a language are commands and outputs
pygments_style = "friendly"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options: dict[str, Any] = {"members": True}
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "labkit"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["course.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_domain_indices = False
html_use_index = False

# Each with the documents in the order of the navigation.
GUIDES: tuple[str, ...] = ("quick-start", "data", "training", "callbacks", "clusters", "models", "dashboard")
GUIDES += ("tensorboard", "python")
OLDER = "*This page shows an execution of an older version of the lesson.*"


def setup(app: Sphinx) -> None:
    """Let Sphinx read lessons and the navigation. ``build``: a value for the folder of ``Paths``."""
    app.add_config_value("build", "", "env", str)
    app.connect("source-read", read_source)
    app.connect("build-finished", add_index)


def read_source(app: Sphinx, name: str, content: list[str]) -> None:
    """Replace what Sphinx has read of a document."""
    if name.startswith("notebooks/"):
        paths = Paths(Path(app.srcdir), Path(app.config.build))
        lesson = paths.lesson(paths.root / f"{name}.ipynb")
        shown_as = {str(paths.home.resolve()): "~/.labkit", str(paths.root): "~/labkit"}
        content[0] = page_of(lesson.executed or lesson.notebook, shown_as)
        number = name.removeprefix("notebooks/")[:2]
        if number.isdigit():  # the title begins with it, and so does the line in the navigation
            content[0] = content[0].replace("# ", f"# {number} ", 1)
        if lesson.is_older:
            content[0] += f"\n{OLDER}\n"
    elif name == "README":
        content[0] += navigation(sorted(app.env.found_docs))


def navigation(names: list[str]) -> str:
    """Return the parts of the navigation, with the documents and lessons in ``names``."""
    documents = [name.removeprefix("docs/") for name in names if name.startswith("docs/")]
    others = [name for name in documents if name not in (*GUIDES, "course", "index")]
    parts = {
        "Course": ["docs/course", *(name for name in names if name.startswith("notebooks/"))],
        "Guides": [f"docs/{name}" for name in GUIDES if name in documents],
        "Python interface": [name for name in names if name.startswith("course/site/api/")],
        "Reference": ["docs/index", *(f"docs/{name}" for name in others)],
        "More": [name for name in names if name.endswith(("CONTRIBUTING", "/README"))],
    }
    trees = ("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])
             for caption, entries in parts.items())  # fmt: skip
    return "\n\n" + "\n\n".join(trees)


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Give the front page the name that servers and people look for."""
    if error is None:
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")
