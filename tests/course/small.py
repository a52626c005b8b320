"""A course of two small lessons, for the tests of ``course``."""

import shutil
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.site.build import ROOT, Paths
from course.site.table import BEGIN, END

# One transparent pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
QUESTION = "<details><summary>What is `lost`?</summary>\n\nNothing.\n\n</details>"
EXERCISE = """answer = None
### BEGIN SOLUTION
answer = 4
### END SOLUTION

check("01.1", answer)"""
DRAW = """from labkit import figures as plots
from course.lessons import claim, say
from labkit.figures.widgets import slider

say(f"Two and two make **{2 + 2}**.")
claim("two is even", 2 % 2 == 0)
slider(lambda value: plots.message(f"step {value} of three"), [1, 2, 3], "step")"""


def title(name: str) -> nbformat.NotebookNode:
    text = f"# {name}\n\nSome *words* and [a link](01_second.ipynb). About 2 minutes on two CPU cores."
    return new_markdown_cell(text, id="title")


def first(draw: str = DRAW) -> nbformat.NotebookNode:
    """A lesson that a kernel executes in a moment."""
    return new_notebook(
        cells=[
            title("First"),
            new_code_cell("x = 1", id="watch"),
            new_code_cell("# Parameters: none\ny = 2", id="parameters", metadata={"tags": ["parameters"]}),
            new_code_cell(draw, id="draw"),
            new_code_cell("print('<b>\\x1b[31mred\\x1b[0m')\nprint('half\\rwhole')", id="printed"),
            new_markdown_cell(QUESTION, id="question"),
        ],
        metadata={"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
    )


def second(*, executed: bool) -> nbformat.NotebookNode:
    """A lesson with an exercise, its solution, and a figure."""
    notebook = new_notebook(
        cells=[
            title("Second"),
            new_markdown_cell("## Exercise\n\nCount the [documents](../docs/guide.md#the-end).", id="about"),
            new_code_cell(EXERCISE, id="exercise"),
            new_code_cell("draw()", id="figure"),
            new_markdown_cell(QUESTION, id="question"),
        ]
    )
    if executed:
        html = "<div role='status'>✓ exercise 01.1: four</div>"
        shown = {"text/plain": "✓ exercise 01.1: four", "text/html": html}
        notebook.cells[2].outputs = [new_output("execute_result", data=shown, execution_count=1)]
        notebook.cells[3].outputs = [
            new_output(
                "display_data",
                data={"image/png": PIXEL, "text/plain": "<a figure>"},
                metadata={"image/png": {"alt": 'A "pixel": nothing', "width": 40}},
            )
        ]
    return notebook


def make_paths(root: Path) -> Paths:
    """Write a checkout with the documents that a site needs, and two lessons, of which one is executed."""
    paths = Paths(root, root / "build" / "course")
    shutil.copytree(ROOT / "course/site/api", root / "course/site/api")
    for folder in (root / "docs", paths.notebooks, paths.executed):
        folder.mkdir(parents=True)
    (root / "README.md").write_text("# Small\n\nA [guide](docs/guide.md) and [code](code.py).\n")
    (root / "code.py").write_text("x = 1\n")
    (root / "docs" / "index.md").write_text("# Documentation\n\n- [Course](course.md)\n- [Guide](guide.md)\n")
    (root / "docs" / "guide.md").write_text("# Guide\n\n[Home](../README.md)\n\n## The end\n\nDone.\n")
    paths.overview.write_text(f"# Course\n\nWords.\n\n{BEGIN}\n{END}\n\nMore words.\n")
    nbformat.write(first(), paths.notebooks / "00_first.ipynb")
    nbformat.write(second(executed=False), paths.notebooks / "01_second.ipynb")
    nbformat.write(second(executed=True), paths.executed / "01_second.ipynb")
    return paths
