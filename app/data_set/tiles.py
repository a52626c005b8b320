"""Grids of images, bars and tables as HTML. Every text of users is escaped here."""

import html
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from app.charts.board import PALETTE
from app.images import cards

__all__ = ["Tile", "bars_table", "facts", "grid", "heading", "strip"]

STYLE = f"""{cards.STYLE}<style>
.lk-strip {{display: grid; grid-template-columns: repeat(auto-fill, minmax(56px, 1fr)); gap: 6px;
  margin: 0 !important; padding: 0 !important; list-style: none}}
.lk-strip li {{margin: 0 !important}}
.lk-strip img {{width: 100%; aspect-ratio: 1; image-rendering: pixelated; display: block; object-fit: contain;
  border-radius: 4px}}
.lk-strip a:focus-visible {{outline: 3px solid #2f7fd1; outline-offset: 2px; display: block}}
.lk-heading {{font-weight: 600; font-size: 14px; margin: 10px 0 4px; display: flex; gap: 8px;
  align-items: baseline; overflow-wrap: anywhere}}
.lk-heading span {{font-weight: 400; opacity: .75; font-size: 13px}}
.lk-table {{width: 100%; border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums}}
.lk-table th, .lk-table td {{text-align: left; padding: 3px 10px 3px 0; border: none !important;
  vertical-align: middle}}
.lk-table th {{font-weight: 600; min-width: 6.5em; overflow-wrap: break-word}}
.lk-table th.lk-split {{min-width: 0}}
.lk-table td.lk-bars {{width: 22%; min-width: 48px}}
.lk-table td.lk-num {{text-align: right; white-space: nowrap}}
.lk-table .lk-track {{height: 12px; border-radius: 3px; min-width: 2px}}
.lk-scroll {{max-height: 520px; overflow: auto}}
.lk-list {{display: grid; grid-template-columns: minmax(110px, max-content) 1fr; gap: 4px 16px;
  font-size: 14px; margin: 0 !important; padding: 0 !important}}
.lk-list dt {{opacity: .75}}
.lk-list dd {{margin: 0; overflow-wrap: anywhere}}
.lk-card .lk-plain {{padding: 8px 10px 10px; font-size: 13px; line-height: 1.4; overflow-wrap: anywhere}}
</style>"""


class Tile:
    """An image with lines of text below it and, perhaps, a link.

    Args:
        image: uint8 [height, width, 1 or 3].
        lines: of text; the first is bold.
        link: address that a click opens; None: none.
    """

    def __init__(self, image: NDArray[np.uint8], lines: Sequence[str], link: str | None = None) -> None:
        self.image, self.lines, self.link = image, lines, link

    def picture(self) -> str:
        """Return the HTML of the image with its link."""
        shown = cards.image_tag(self.image, ", ".join(self.lines), title=True)
        if self.link is None:
            return shown
        return f'<a href="{html.escape(self.link, quote=True)}">{shown}</a>'


def grid(tiles: Iterable[Tile], width: int = 110) -> str:
    """Return the HTML of a card for each tile, at least ``width`` pixels wide."""
    shown = "".join(
        f'<li class="lk-card">{tile.picture()}<div class="lk-plain"><b>{html.escape(tile.lines[0])}</b>'
        + "".join(f"<br>{html.escape(line)}" for line in tile.lines[1:])
        + "</div></li>"
        for tile in tiles
    )
    columns = f"grid-template-columns: repeat(auto-fill, minmax({width}px, 1fr)); gap: 10px"
    return f'{STYLE}<ul class="lk-grid" style="{columns}">{shown}</ul>'


def strip(tiles: Iterable[Tile]) -> str:
    """Return the HTML of small images in rows, whose text is shown under the pointer."""
    return f'{STYLE}<ul class="lk-strip">{"".join(f"<li>{tile.picture()}</li>" for tile in tiles)}</ul>'


def heading(name: str, note: str) -> str:
    """Return the HTML of a heading for a class, with a note beside it."""
    return f'{STYLE}<div class="lk-heading">{html.escape(name)}<span>{html.escape(note)}</span></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return the HTML of names with their values."""
    shown = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows)
    return f'{STYLE}<dl class="lk-list">{shown}</dl>'


def bars_table(
    names: Sequence[str], counts: dict[str, NDArray[np.int64]], sizes: dict[str, int], most: dict[str, int]
) -> str:
    """Return the HTML of a table: the number of each class's images in each split, with bars.

    Args:
        names: of the classes.
        counts: int64 [classes] by split.
        sizes: the number of images by split.
        most: the number of images of the largest class, by split.
    """
    head = "".join(f'<th class="lk-split" colspan="2">{html.escape(name)}</th>' for name in counts)
    rows = []
    for number, name in enumerate(names):
        cells = "".join(
            _cells(int(of[number]), sizes[split], most[split], PALETTE[place % len(PALETTE)])
            for place, (split, of) in enumerate(counts.items())
        )
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    table = f'<table class="lk-table"><tr><th scope="col">Class</th>{head}</tr>{"".join(rows)}</table>'
    return (
        f'{STYLE}<div class="lk-scroll" tabindex="0" role="region" aria-label="Class balance">{table}</div>'
    )


def _cells(count: int, size: int, most: int, color: str) -> str:
    share = f"{count / size:.1%}" if size else "–"
    bar = f'<div class="lk-track" style="width:{100 * count / max(most, 1):.1f}%;background:{color}"></div>'
    number = f'<td class="lk-num" title="{share} of the split">{count:,}</td>'
    return f'{number}<td class="lk-bars">{bar}</td>'
