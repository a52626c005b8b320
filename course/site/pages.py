"""A notebook as a page of Markdown: solutions are folded, figures keep their alternative texts."""

import base64
import html
import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from course.lessons.commands import student_code
from labkit.notebook.install_cell import CELL_ID

COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
MARKERS = re.compile(r"^[ \t]*### (BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)
# What TensorFlow's C++ code logs about the machine; what goes wrong is raised in Python.
LOG_OF_TENSORFLOW = re.compile(
    r"^(?:[IWE]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl.*|To enable the following .*)\n?",
    re.MULTILINE,
)
LOCAL_SERVER = re.compile(r"<iframe\b[^>]*\bsrc=[\"']https?://(127\.0\.0\.1|localhost)\b")
SUMMARY = re.compile(r"<summary>.*?</summary>", re.DOTALL)
WIDGET = "application/vnd.jupyter.widget-view+json"  # stands below a static figure, and needs a kernel


def write_page(notebook: Any, page: Path, shown_as: Mapping[str, str] | None = None) -> None:
    """Write an executed notebook as ``page``, with its pictures beside it.

    Args:
        notebook: read by nbformat.
        page: a path that ends in ``.md``; its folder exists.
        shown_as: texts of outputs that are replaced, such as the names of folders of this machine.
    """
    parts: list[str] = []
    for is_setup, cells in groupby(notebook.cells, _is_setup):
        inner: list[str] = []
        for cell in cells:
            if cell.cell_type == "markdown":
                inner.append(SUMMARY.sub(_code_in_summary, cell.source))
            elif cell.cell_type == "code" and cell.source.strip():
                inner += _code_cell(cell, page, shown_as or {})
        parts += _folded("setup", "Setup and parameters", inner) if is_setup else inner
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _is_setup(cell: Any) -> bool:
    """Return whether a cell only installs labkit or serves the parameters, as in every lesson."""
    return "parameters" in cell.metadata.get("tags", ()) or cell.id in (CELL_ID, "watch")


def _code_in_summary(summary: re.Match[str]) -> str:
    """Return a summary with its code as HTML: Markdown isn't read there."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", summary[0])


def _code_cell(cell: Any, page: Path, shown_as: Mapping[str, str]) -> list[str]:
    outputs = [
        text
        for number, output in enumerate(joined(cell.outputs))
        for text in _output(output, number, cell, page)
    ]
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


def joined(outputs: list[Any]) -> list[Any]:
    """Return the outputs with what was printed piece by piece in one piece."""
    result: list[Any] = []
    for output in outputs:
        last = result[-1] if result else None
        if output.output_type == "stream" and last is not None and last.get("name") == output.name:
            result[-1] = {**last, "text": last["text"] + output.text}
        else:
            result.append(dict(output))
    return result


def _output(output: Mapping[str, Any], number: int, cell: Any, page: Path) -> list[str]:
    if output["output_type"] == "stream":
        return _text(
            LOG_OF_TENSORFLOW.sub("", output["text"]) if output["name"] == "stderr" else output["text"]
        )
    if output["output_type"] == "error":
        return _text("\n".join(output["traceback"]), "output error")
    data = output["data"]
    if WIDGET in data:
        return []
    if LOCAL_SERVER.search(data.get("text/html", "")):
        return ["*A page of a server that runs with the notebook: run the lesson to see it here.*"]
    if "text/html" in data:
        # In one paragraph of HTML, an empty line would end it.
        return [_fenced("{raw} html", f'<div class="output">{data["text/html"]}</div>')]
    if "image/png" in data:
        name = f"{page.stem}-{cell.id}-{number}.png"
        page.with_name(name).write_bytes(base64.b64decode(data["image/png"]))
        return [_image(name, output.get("metadata", {}).get("image/png", {}))]
    if "image/svg+xml" in data:
        return [_fenced("{raw} html", f'<div class="output">{data["image/svg+xml"]}</div>')]
    if "text/markdown" in data:
        return [data["text/markdown"]]
    return _text(data.get("text/plain", ""))


def _image(name: str, shown: Mapping[str, Any]) -> str:
    # A text in JSON is one in YAML, which the options of a directive are.
    options = [":class: output"]
    if shown.get("alt"):
        options.append(f":alt: {json.dumps(' '.join(shown['alt'].split()), ensure_ascii=False)}")
    if shown.get("width"):
        options.append(f":width: {shown['width']}px")
    return _fenced("{image} " + name, "\n".join(options))


def _text(text: str, kind: str = "output") -> list[str]:
    """Return printed text as a terminal shows it: without colours, and with what a ``\\r`` left of a line."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n")]
    shown = "\n".join(lines).strip("\n")
    if not shown:
        return []
    return [_fenced("{raw} html", f'<pre class="{kind}">{html.escape(shown)}</pre>')]
