"""Tables of text: whole in a pipe, no wider than the terminal elsewhere.

Without a library, whose import would take longer than the rest of a quick command.
"""

import shutil
import sys
import unicodedata
from collections.abc import Collection, Sequence

from labkit.plurals import printable

GAP = "  "
LEAST_WIDTH = 8  # of a shortened first column


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
    widths = [max(_width(row[column]) for row in table) for column in range(len(header))]
    if width is not None:
        while len(widths) > 1 and min(widths[0], LEAST_WIDTH) + _others(widths) > width:
            widths.pop()
        widths[0] = min(widths[0], max(1, width - _others(widths)))
    for row in table:
        cells = [
            _padded(_shortened(cell, size), size, title in right)
            for title, cell, size in zip(header, row, widths, strict=False)
        ]
        print(GAP.join(cells).rstrip())


def _others(widths: Sequence[int]) -> int:
    """Return the width of all columns but the first."""
    return sum(len(GAP) + size for size in widths[1:])


def _width(text: str) -> int:
    """Return the columns that a terminal takes for ``text``: two for a Chinese character, none for a mark."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(bool(unicodedata.combining(character)) for character in text)


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _shortened(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    text = text[:width]
    while text and _width(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def age_in_words(seconds: float) -> str:
    """Return an age in its largest unit: ``42 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
