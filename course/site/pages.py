"""A notebook as a page of Markdown: solutions are folded, figures keep their alternative texts."""

import re
from collections.abc import Mapping
from html import escape
from itertools import groupby
from typing import Any

from nbconvert.filters import strip_ansi

from course.lessons.commands import student_code
from labkit.notebook.install_cell import CELL_ID

MARKERS = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)
# What TensorFlow's C++ code logs about the machine; what goes wrong is raised in Python.
LOG_OF_TENSORFLOW = re.compile(
    r"^(?:[IWE]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl.*|To enable the following .*)\n?",
    re.MULTILINE,
)
LOCAL_SERVER = re.compile(r"<iframe\b[^>]*\bsrc=[\"']https?://(127\.0\.0\.1|localhost)\b")
SUMMARY = re.compile(r"<summary>.*?</summary>", re.DOTALL)
WIDGET = "application/vnd.jupyter.widget-view+json"  # stands below a static figure, and needs a kernel


def page_of(notebook: Any, shown_as: Mapping[str, str] | None = None) -> str:
    """Return an executed notebook as Markdown, with its pictures in it.

    Args:
        notebook: read by nbformat.
        shown_as: texts of outputs that are replaced, such as the names of folders of this machine.
    """
    parts: list[str] = []
    for is_setup, cells in groupby(notebook.cells, _is_setup):
        inner: list[str] = []
        for cell in cells:
            if cell.cell_type == "markdown":
                inner.append(SUMMARY.sub(_code_in_summary, cell.source))
            elif cell.cell_type == "code" and cell.source.strip():
                inner += _code_cell(cell, shown_as or {})
        parts += _folded("setup", "Setup and parameters", inner) if is_setup else inner
    return "\n\n".join(parts) + "\n"


def _is_setup(cell: Any) -> bool:
    """Return whether a cell only installs labkit or serves the parameters, as in every lesson."""
    return "parameters" in cell.metadata.get("tags", ()) or cell.id in (CELL_ID, "watch")


def _code_in_summary(summary: re.Match[str]) -> str:
    """Return a summary with its code as HTML: Markdown isn't read there."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", summary[0])


def _code_cell(cell: Any, shown_as: Mapping[str, str]) -> list[str]:
    outputs = [*filter(None, map(_output, cell.outputs))]
    for text, instead in shown_as.items():
        outputs = [shown.replace(text, instead) for shown in outputs]
    if "### BEGIN SOLUTION" not in cell.source:
        return [_code(cell.source), *outputs]
    solution = _code(MARKERS.sub("", cell.source))
    return [_code(student_code(cell.source)), *_folded("solution", "Solution", [solution, *outputs])]


def _folded(kind: str, summary: str, parts: list[str]) -> list[str]:
    return [f'<details class="{kind}"><summary>{summary}</summary>', *parts, "</details>"]


def _code(source: str) -> str:
    language = "ipython3" if re.search(r"^\s*[%!]", source, re.MULTILINE) else "python"
    return _fenced(language, source.strip("\n"))


def _fenced(info: str, text: str) -> str:
    """Return a fenced block with more backticks than ``text`` has in a row."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{ticks}{info}\n{text}\n{ticks}"


def _output(output: Any) -> str:
    """Return an output as Markdown; "" for one that isn't shown."""
    if output.output_type == "stream":
        is_error = output.name == "stderr"
        return _text(LOG_OF_TENSORFLOW.sub("", output.text) if is_error else output.text)
    if output.output_type == "error":
        return _text("\n".join(output.traceback), "output error")
    data = output.data
    if WIDGET in data:
        return ""
    if LOCAL_SERVER.search(data.get("text/html", "")):
        return "*A page of a server that runs with the notebook: run the lesson to see it here.*"
    if "image/png" in data and "text/html" not in data:
        about = output.metadata.get("image/png", {})
        alt, width = escape(" ".join(about.get("alt", "").split())), about.get("width", "auto")
        source = f"data:image/png;base64,{''.join(data['image/png'].split())}"
        return _html(f'<img class="output" alt="{alt}" width="{width}" src="{source}">')
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return _html(f'<div class="output">{data[kind]}</div>')
    return data.get("text/markdown") or _text(data.get("text/plain", ""))


def _html(text: str) -> str:
    return _fenced("{raw} html", text)  # in a paragraph of Markdown, an empty line would end it


def _text(text: str, kind: str = "output") -> str:
    """Return printed text without colours; "" if there is none."""
    shown = strip_ansi(text).strip("\n")
    return _html(f'<pre class="{kind}">{escape(shown)}</pre>') if shown else ""
