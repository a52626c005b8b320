"""The map of images as a canvas: its points, marks and thumbnails, and what the reader has selected."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from PIL import Image

from app.charts.board import PALETTE, ends
from app.data_set.image_map import ImageMap

__all__ = ["Marks", "draw", "legend", "marks_of_classes", "marks_of_right", "picked", "sprite"]

ASSETS = Path(__file__).parent / "assets"
SHAPES = ("circle", "square", "up", "cross", "diamond", "down", "ring", "plus", "right", "left")
GLYPHS = dict(zip(SHAPES, "●■▲✕◆▼○+▶◀", strict=True))
GREY = "#7a7f87"
COLORS = (*PALETTE[:7], "#8a63f0", "#d6457a", "#6b8e23")  # as many as shapes: 100 pairs of them


@dataclass(frozen=True, eq=False)
class Marks:
    """How points are drawn. ``kind``: int64 [n], an index into the others. ``faint``: almost invisible."""

    kind: NDArray[np.int64]
    names: Sequence[str]
    colors: Sequence[str]
    shapes: Sequence[str]
    faint: Sequence[bool]


def marks_of_classes(shown: ImageMap, classes: Sequence[str], highlighted: int | None) -> Marks:
    """Return a mark for each class: colour and shape together tell 100 classes apart.

    ``highlighted``: the number of a class; the others are faint. None: none is.
    """
    numbers = range(len(classes))
    kind = np.where(shown.shown_class < 0, len(classes), shown.shown_class)
    return Marks(
        kind,
        [*classes, "no class"],
        [*(COLORS[number % len(COLORS)] for number in numbers), GREY],
        [*(SHAPES[(number + number // len(COLORS)) % len(SHAPES)] for number in numbers), "ring"],
        [*(highlighted not in (None, number) for number in numbers), highlighted is not None],
    )


def marks_of_right(shown: ImageMap) -> Marks:
    """Return a mark for right predictions and one for wrong ones."""
    kind = (~shown.right).astype(np.int64)
    return Marks(kind, ["right", "wrong"], PALETTE[:2], ["circle", "cross"], [False, False])


def sprite(thumbnails: NDArray[np.uint8]) -> tuple[str, tuple[int, int], int]:
    """Return a sheet of all images as a data URI, the (width, height) of each, and how many are in a row.

    Args:
        thumbnails: uint8 [n, height, width, channels], n > 0.
    """
    size = thumbnails.shape[2], thumbnails.shape[1]
    columns = int(np.ceil(np.sqrt(len(thumbnails))))
    sheet = Image.new("RGB", (columns * size[0], -(-len(thumbnails) // columns) * size[1]))
    for number, image in enumerate(thumbnails):
        tile = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        sheet.paste(tile, (number % columns * size[0], number // columns * size[1]))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode(), size, columns


def draw(
    shown: ImageMap,
    marks: Marks,
    sheet: tuple[str, tuple[int, int], int],
    tips: Sequence[str],
    *,
    key: str,
    version: str,
    label: str,
) -> None:
    """Draw the map. ``picked`` reads what the reader selects.

    Args:
        shown: the map.
        marks: of its points.
        sheet: the result of ``sprite`` for its images.
        tips: the text shown beside each thumbnail.
        key: of the widget.
        version: a selection on another version doesn't count.
        label: for screen readers.
    """
    # One image, or all in a line, have equal ends.
    across, down = (ends(float(places.min()), float(places.max())) for places in shown.positions.T)
    faint = np.asarray(marks.faint)[marks.kind]
    data: dict[str, Any] = {
        "x": shown.positions[:, 0].round(4).tolist(),
        "y": shown.positions[:, 1].round(4).tolist(),
        "extent": [across[0], down[0], across[1], down[1]],
        "kind": marks.kind.tolist(),
        "colors": list(marks.colors),
        "shapes": list(marks.shapes),
        "faint": list(marks.faint),
        # The faint ones below the others; otherwise as they come, with rare kinds on top.
        "order": np.lexsort((-np.bincount(marks.kind)[marks.kind], ~faint)).tolist(),
        "sprite": sheet[0],
        "tile": sheet[1],
        "columns": sheet[2],
        "tips": list(tips),
        "version": version,
        "label": label,
    }
    script, style = ((ASSETS / f"image_map.{kind}").read_text() for kind in ("js", "css"))
    frame = st.components.v2.component("labkit_image_map", css=style, js=script, isolate_styles=False)
    frame(key=key, data=data, height="content", on_picked_change=lambda: None)


def picked(key: str, version: str, count: int) -> list[int]:
    """Return the points that the reader has selected on the map ``key``, ascending."""
    found: Any = getattr(st.session_state.get(key), "picked", None)
    try:
        if found["version"] != version:
            return []
        return sorted({int(point) for point in found["points"] if 0 <= int(point) < count})
    except (TypeError, KeyError, ValueError):
        return []


def legend(marks: Marks) -> str:
    """Return the HTML of the legend."""
    counts = np.bincount(marks.kind, minlength=len(marks.names))
    items = "".join(
        f'<li style="opacity:{0.55 if marks.faint[kind] else 1}">'
        f'<span aria-hidden="true" style="color:{marks.colors[kind]}">{GLYPHS[marks.shapes[kind]]}</span> '
        f"{html.escape(str(name))} ({counts[kind]:,})</li>"
        for kind, name in enumerate(marks.names)
        if counts[kind]
    )
    style = (
        "display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;margin:0;padding:0;font-size:13px;"
        "max-height:9em;overflow:auto"
    )
    return f'<ul style="{style}">{items}</ul>'
