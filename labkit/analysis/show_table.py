"""Show rows of cells as aligned text, as a table of Markdown, or as one of HTML."""

from collections.abc import Sequence
from html import escape


def text_table(rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """Return a line for each row, with aligned columns.

    Args:
        rows: the header and the rows, with the same number of cells.
        left_columns: how many columns are left-aligned; the others are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if number < left_columns else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


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
