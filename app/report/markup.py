"""Small pieces of HTML. Every text that comes from a run passes through ``escaped``."""

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

__all__ = ["escaped", "facts", "folded", "moment", "note", "section", "table"]


def escaped(text: object) -> str:
    """Return ``text`` as HTML that shows it as it is, whatever its direction of writing."""
    clean = str(text).encode(errors="replace").decode()
    return f"<bdi>{html.escape(clean)}</bdi>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return labels with their values, side by side."""
    cells = (f"<div><dt>{escaped(label)}</dt><dd>{escaped(value)}</dd></div>" for label, value in pairs)
    return f'<dl class="facts">{"".join(cells)}</dl>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. The first cell of each row is its heading. Without rows it is empty."""
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in header)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, body: str, level: int = 2) -> str:
    """Return a heading with what follows it; nothing if the body is empty."""
    return f"<section><h{level}>{escaped(title)}</h{level}>{body}</section>" if body else ""


def folded(title: str, body: str) -> str:
    """Return a part that opens with a click, and is open on paper."""
    return f"<details><summary>{escaped(title)}</summary>{body}</details>" if body else ""


def note(text: str) -> str:
    """Return a sentence in a box."""
    return f'<p class="note">{escaped(text)}</p>'


def moment(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text in UTC; – if there is no such time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "–"
