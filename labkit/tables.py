"""Rows of cells as a table: text, Markdown or HTML.

Without a library, whose import would take longer than the rest of a quick command.
"""

import shutil
import sys
import unicodedata
from collections.abc import Collection, Sequence
from html import escape

from labkit.plurals import printable

GAP = "  "
LEAST_WIDTH = 8  # of a shortened first column


def text_table(rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """Return a line for each row, with aligned columns.

    Args:
        rows: the header and the rows, with the same number of cells.
        left_columns: how many columns are left-aligned; the others are right-aligned.
    """
    widths = _widths(rows)
    right = [column >= left_columns for column in range(len(widths))]
    return "\n".join(_line(row, widths, right) for row in rows)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Print ``rows`` under ``header``.

    Characters that a terminal would obey are escaped. On a narrow terminal the first column is shortened,
    then the last columns are left out.

    Args:
        right: headers of the columns that are aligned to the right.
        width: columns of the terminal; None asks, a pipe has no limit.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = _widths(table)
    if width is not None:
        while len(widths) > 1 and min(widths[0], LEAST_WIDTH) + _others(widths) > width:
            widths.pop()
        widths[0] = min(widths[0], max(1, width - _others(widths)))
    for row in table:
        print(_line(row, widths, [title in right for title in header]))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown with the first column left-aligned; the first row is the header."""
    lines = [rows[0], ("---", *("---:" for _ in rows[0][1:])), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", footer: Sequence[str] = ()
) -> str:
    """Return an HTML table. All text is escaped; an empty caption or footer is left out."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    title = f"<caption><b>{escape(caption)}</b></caption>" if caption else ""
    body = "".join(line(row, "td") for row in rows)
    end = f"<tfoot>{line(footer, 'th')}</tfoot>" if footer else ""
    return f"<table>{title}<thead>{line(header, 'th')}</thead><tbody>{body}</tbody>{end}</table>"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def _others(widths: Sequence[int]) -> int:
    """Return the width of all columns but the first."""
    return sum(len(GAP) + size for size in widths[1:])


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """Return the cells for which there are widths, aligned; what is too long is shortened."""
    cells = []
    for cell, width, is_right in zip(row, widths, right, strict=False):
        text = _shortened(cell, width)
        space = " " * (width - _width(text))
        cells.append(space + text if is_right else text + space)
    return GAP.join(cells).rstrip()


def _width(text: str) -> int:
    """Return the columns that a terminal takes for ``text``: two for a Chinese character, none for a mark."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(bool(unicodedata.combining(character)) for character in text)


def _shortened(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    text = text[:width]
    while text and _width(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
