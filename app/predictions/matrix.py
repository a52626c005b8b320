"""A table of counts whose cells are buttons: the confusion matrix, or what each label misses and adds."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images.text import visible
from labkit.analysis.predictions import Predictions

__all__ = ["Matrix", "confusion", "draw", "label_errors", "picked"]

ASSETS = Path(__file__).parent / "assets"
LABEL_COLUMNS = ("found", "missed", "added")


@dataclass(frozen=True)
class Matrix:
    """``counts``: int64 [rows, columns]. ``good``: bool of the same shape, whether a cell counts right
    predictions. ``wholes``: int64 [rows], what the shade of a cell is a fraction of. ``words``: what a cell
    counts, with the names of its row and its column as ``{row}`` and ``{column}``.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    counts: NDArray[np.int64]
    good: NDArray[np.bool_]
    wholes: NDArray[np.int64]
    words: str
    corner: str
    upright: bool = False  # whether the names of the columns are short, so that they needn't be turned


def confusion(predictions: Predictions) -> Matrix:
    """Return the confusion matrix, true classes in rows. There must be one label per image."""
    counts = predictions.confusion
    assert counts is not None
    return Matrix(
        predictions.classes,
        predictions.classes,
        counts,
        np.eye(len(counts), dtype=bool),
        counts.sum(axis=1),
        "{row} predicted as {column}",
        "true ↓ predicted →",
    )


def label_errors(predictions: Predictions) -> Matrix:
    """Return how often each of several labels was found, missed, and wrongly added."""
    has, given = predictions.has, predictions.given
    columns = [(has & given).sum(axis=0), (has & ~given).sum(axis=0), (~has & given).sum(axis=0)]
    counts = np.stack(columns, axis=1).astype(np.int64)
    good = np.zeros(counts.shape, bool)
    good[:, 0] = True
    wholes = has.sum(axis=0)
    return Matrix(
        predictions.classes, LABEL_COLUMNS, counts, good, wholes, "{row} {column}", "label", upright=True
    )


def draw(matrix: Matrix, chosen: tuple[int, int] | None, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw a matrix.

    Args:
        matrix: its counts.
        chosen: row and column of the cell to mark; -1 for a whole row or column.
        key: of the component; ``picked`` reads what was clicked.
        on_pick: called after a click, before the page is drawn again.
    """
    table = {
        "rows": [visible(name) for name in matrix.rows],
        "columns": [visible(name) for name in matrix.columns],
        "counts": matrix.counts.tolist(),
        "good": matrix.good.astype(int).tolist(),
        "wholes": matrix.wholes.tolist(),
        "words": matrix.words,
        "corner": matrix.corner,
        "upright": matrix.upright,
    }
    mark = hashlib.blake2b(repr(table).encode(errors="replace"), digest_size=8).hexdigest()
    script, style = (ASSETS / "matrix.js").read_text(), (ASSETS / "matrix.css").read_text()
    frame = st.components.v2.component("labkit_matrix", js=script, css=style, isolate_styles=False)
    data = {"table": table, "mark": mark, "chosen": list(chosen) if chosen else None}
    frame(key=key, data=data, on_cell_change=on_pick, height="content")


def picked(key: str) -> tuple[int, int] | None:
    """Return row and column of the cell that was clicked last; -1 for the name of a row or a column."""
    cell: Any = getattr(st.session_state.get(key), "cell", None)
    try:
        return int(cell["row"]), int(cell["column"])
    except (TypeError, KeyError, ValueError):
        return None
