"""Text and HTML on pages: what users wrote shown as it is, numbers, logs, drawings."""

import functools
import html
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import streamlit as st

from labkit.run_directory.files import open_run_file

T = TypeVar("T")

# The label, colour and icon of each state, and whether the page is refreshed every second.
STATES = {
    "starting": ("starting", "blue", ":material/hourglass_top:", True),
    "running": ("running", "green", ":material/play_circle:", True),
    "stalled": ("stalled", "orange", ":material/warning:", True),
    "lost": ("lost", "red", ":material/skull:", False),
    "finished": ("finished", "gray", ":material/check_circle:", False),
    "interrupted": ("interrupted", "orange", ":material/pause_circle:", False),
    "failed": ("failed", "red", ":material/error:", False),
    "no status": ("no status yet", "gray", ":material/help:", True),
}

_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:^=&])")
# Marks that turn the direction of the text around them, and control characters.
_INVISIBLE = re.compile("[\u0000-\u0008\u000b-\u001f\u007f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Return ``text`` without marks that turn the direction of the text around them."""
    return _INVISIBLE.sub("�", text)


def plain(text: str) -> str:
    """Return Markdown that shows ``text`` as it is, on one line."""
    text = text.encode(errors="replace").decode()  # names of files may hold what isn't Unicode
    return _SPECIAL.sub(r"\\\1", visible(" ".join(text.split())))


def tail(path: Path, max_bytes: int) -> str:
    """Return the last whole lines of a text file, at most ``max_bytes``; empty if it can't be read."""
    return read_end(path, max_bytes).decode(errors="replace")


def read_end(path: Path, max_bytes: int, since: int = 0) -> bytes:
    """Return the last whole lines of a file of a run, at most ``max_bytes``; empty if it can't be read.

    ``since``: how many bytes at its beginning are left out.
    """
    try:
        with open_run_file(path) as file:
            size = file.seek(0, os.SEEK_END) - since
            file.seek(since + max(0, size - max_bytes))
            data: bytes = file.read(max_bytes)
    except OSError:
        return b""
    return data[data.find(b"\n") + 1 :] if size > max_bytes else data


def one_of(
    label: str,
    options: Iterable[T],
    key: str,
    first: T | None = None,
    *,
    bind: Literal["query-params"] | None = "query-params",
    **settings: Any,
) -> T:
    """Draw a choice of which one always holds: the ``first``, or the first of the options, at first.

    Args:
        label, options, key, settings: of ``st.segmented_control``.
        first: what holds before anybody chooses.
        bind: whether the choice stands in the URL; None: it doesn't.
    """
    options = list(options)
    first = options[0] if first is None else first
    chosen = st.segmented_control(
        label, options, default=first, key=key, required=True, bind=bind, **settings
    )
    return first if chosen is None else chosen


def unfolding(label: str, draw: Callable[[], object], *, key: str, icon: str, expanded: bool = False) -> None:
    """Draw a box that a click opens, and what is in it while it is open. ``icon``: a name of Material's."""
    box = st.expander(label, expanded, key=key, icon=f":material/{icon}:", on_change="rerun")
    if box.open:
        with box:
            draw()


def show_commands(commands: Mapping[str, str]) -> None:
    """Draw commands for a shell, each below what it does."""
    for title, command in commands.items():
        st.caption(title)
        show_command(command)


_ARGUMENT = re.compile(r"((?:'[^']*'|[^\s'])+)")


def show_command(command: str) -> None:
    """Draw a command for a shell with a button that copies it. A line ends between two arguments only.

    Browsers end a line of ``st.code`` within a flag, at its hyphens, and no style prevents it.
    """
    parts = _ARGUMENT.split(html.escape(command.encode(errors="replace").decode(), quote=False))
    parts[1::2] = (f"<span>{part}</span>" for part in parts[1::2])
    code = f'<code>{"".join(parts)}</code><button class="lk-copy" type="button">Copy</button>'
    st.html(f'<pre class="lk-command" dir="ltr">{code}</pre>')


DRAWING = Path(__file__).parent / "charts" / "assets" / "drawing.js"
WIDTHS = (680, 340)  # pixels: of a laptop's page, of a phone's


def component(script: Path) -> Any:
    """Return the component whose code is ``script``, with the ``.css`` and ``.html`` beside it, if any."""
    return st.components.v2.component(f"labkit_{script.stem}", **_code(script), isolate_styles=False)


@functools.cache
def _code(script: Path) -> dict[str, str]:
    parts = {kind: script.with_suffix(f".{kind}") for kind in ("js", "css", "html")}
    return {kind: path.read_text() for kind, path in parts.items() if path.exists()}


def draw_markup(markup: str, *, key: str) -> None:
    """Draw HTML with SVG, or replace what is drawn under ``key``. All texts in ``markup`` must be escaped.

    ``st.html`` takes SVG out, and an image would know neither the theme nor the pointer.
    """
    component(DRAWING)(key=key, data={"markup": markup}, height="content")


def draw_for_widths(draw: Callable[[int], str], *, key: str) -> None:
    """Draw one of two SVGs, which ``draw`` makes for each of ``WIDTHS``, so that texts keep their size."""
    wide, narrow = map(draw, WIDTHS)
    draw_markup(f'<div class="lk-wide">{wide}</div><div class="lk-narrow">{narrow}</div>', key=key)


def number_text(value: Any, form: str = ".4g") -> str:
    """Return a number as text; a dash if it is unknown, or isn't a number. Percents have a space."""
    if not isinstance(value, int | float):
        return "–"
    if not math.isfinite(value):
        return str(value).replace("inf", "∞").replace("nan", "NaN")
    return format(value, form).replace("%", " %")


def escaped(text: object) -> str:
    """Return ``text`` as HTML that shows it as it is, whatever its direction of writing."""
    return f"<bdi>{html.escape(str(text).encode(errors='replace').decode())}</bdi>"


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return labels and values in one row, which wraps on a narrow screen."""
    cells = (f"<div><dt>{escaped(label)}</dt><dd>{escaped(value)}</dd></div>" for label, value in facts)
    return f'<dl class="lk-facts">{"".join(cells)}</dl>'


class Bar(NamedTuple):
    """A cell of a table: a text, over a bar of a share from 0 to 1."""

    text: str
    share: float
    color: str

    def __str__(self) -> str:
        return self.text


def table_html(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of numbers, or without a header of texts; nothing without rows.

    The first cell of each row is its heading. Other cells may be a ``Bar``.
    """
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th>{"".join(map(_cell, rest))}</tr>' for name, *rest in rows
    )
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in header)
    table = f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
    return f'<div class="{"lk-rows" if head else "lk-list"}">{table}</div>'


def _cell(value: object) -> str:
    style = ""
    if isinstance(value, Bar):
        style = f' class="lk-bar-of" style="--share:{100 * value.share:.1f}%;--color:{value.color}"'
    return f"<td{style}>{escaped(value)}</td>"


def duration(seconds: float | None) -> str:
    """Return a time span as text: ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``; – if unknown."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if large != "h" else 24) or large == "d":
            return f"{whole // size} {large} {whole % size // part:02d} {small}"
    raise AssertionError("the last unit has no limit")


def progress_html(step: int, total: int) -> str:
    """Return how many steps are done, with a bar where it is known of how many."""
    if total <= 0:
        return f'<div class="lk-progress">Step {step:,}</div>'
    share = min(max(step / total, 0.0), 1.0)
    return (
        f'<div class="lk-progress" role="progressbar" aria-label="Steps" aria-valuemin="0" '
        f'aria-valuemax="{total}" aria-valuenow="{step}">Step {step:,} of {total:,}'
        f'<div class="lk-track"><div style="width:{100 * share:.2f}%"></div></div></div>'
    )
