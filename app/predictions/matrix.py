"""A table of counts whose cells are buttons: the confusion matrix, or what each label misses and adds."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.markup import component, visible
from labkit.analysis.predictions import Predictions
from labkit.training.scores import confusion_counts

SCRIPT = Path(__file__).parent / "assets" / "matrix.js"
LABEL_COLUMNS = ("found", "missed", "added")
MOST_CLASSES = 100  # of a matrix that is drawn whole; a browser takes a second for as many squared
MOST_MISTAKEN = 40  # classes of the part that is drawn of more
MOST_LABELS = 500  # rows of the table of labels


@dataclass(frozen=True)
class Matrix:
    """``counts``: int64 [rows, columns]. ``good``: bool of the same shape, whether a cell counts right
    predictions. ``wholes``: int64 [rows], what the shade of a cell is a fraction of. ``words``: what a cell
    counts, with the names of its row and its column as ``{row}`` and ``{column}``. ``numbers``: the class of
    each row, where only some classes are drawn; of each column, too, in a confusion matrix.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    counts: NDArray[np.int64]
    good: NDArray[np.bool_]
    wholes: NDArray[np.int64]
    words: str
    corner: str
    upright: bool = False  # whether the names of the columns are short, so that they needn't be turned
    numbers: Sequence[int] | None = None

    def cell_of(self, classes: tuple[int, int]) -> tuple[int, int] | None:
        """Return the cell of a row's class and a column's; None if it isn't drawn. -1 stays -1."""
        if self.numbers is None:
            return classes
        row, column = classes
        places = {number: place for place, number in enumerate(self.numbers)} | {-1: -1}
        columns = range(-1, len(self.columns)) if self.upright else places
        if row not in places or column not in columns:
            return None
        return places[row], column if self.upright else places[column]

    def classes_of(self, cell: tuple[int, int]) -> tuple[int, int]:
        """Return the row's class and the column's of a cell: the inverse of ``cell_of``."""
        if self.numbers is None:
            return cell
        row, column = (self.numbers[place] if place >= 0 else -1 for place in cell)
        return row, cell[1] if self.upright else column


def confusion(predictions: Predictions) -> Matrix:
    """Return the confusion matrix, true classes in rows. There must be one label per image.

    Of very many classes it has those with the most mistakes.
    """
    names, labels, predicted = predictions.classes, predictions.labels, predictions.predicted
    numbers = None
    if len(names) > MOST_CLASSES:
        wrong = predictions.wrong
        mistakes = sum(np.bincount(part[wrong], minlength=len(names)) for part in (labels, predicted))
        numbers = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_MISTAKEN]).tolist()
        places = np.full(len(names), -1)
        places[numbers] = range(len(numbers))
        kept = (places[labels] >= 0) & (places[predicted] >= 0)
        names = [names[number] for number in numbers]
        labels, predicted = places[labels[kept]], places[predicted[kept]]
    counts = confusion_counts(labels, predicted, len(names))
    assert counts is not None
    return Matrix(
        names,
        names,
        counts,
        np.eye(len(counts), dtype=bool),
        np.bincount(predictions.labels, minlength=len(predictions.classes))[numbers or slice(None)],
        "{row} predicted as {column}",
        "true ↓ predicted →",
        numbers=numbers,
    )


def label_errors(predictions: Predictions) -> Matrix:
    """Return how often each of several labels was found, missed, and wrongly added.

    Of very many labels it has those with the most mistakes.
    """
    has, given, names = predictions.has, predictions.given, predictions.classes
    columns = [(has & given).sum(axis=0), (has & ~given).sum(axis=0), (~has & given).sum(axis=0)]
    counts = np.stack(columns, axis=1).astype(np.int64)
    numbers = None
    if len(names) > MOST_LABELS:
        order = np.argsort(-counts[:, 1:].sum(axis=1), kind="stable")
        numbers = np.sort(order[:MOST_LABELS]).tolist()
        names, counts = [names[number] for number in numbers], counts[numbers]
    good = np.zeros(counts.shape, bool)
    good[:, 0] = True
    wholes = counts[:, 0] + counts[:, 1]
    return Matrix(
        names,
        LABEL_COLUMNS,
        counts,
        good,
        wholes,
        "{row} {column}",
        "label",
        upright=True,
        numbers=numbers,
    )


def draw(matrix: Matrix, chosen: tuple[int, int] | None, *, key: str, on_pick: Callable[[], None]) -> None:
    """Draw a matrix.

    Args:
        matrix: its counts.
        chosen: row and column of the cell to mark; -1 for a whole row or column.
        key: of the component; ``picked`` reads what was clicked.
        on_pick: called after a click, before the page is drawn again.
    """
    table = vars(matrix) | {
        "rows": [visible(name) for name in matrix.rows],
        "columns": [visible(name) for name in matrix.columns],
        "counts": matrix.counts.tolist(),
        "good": matrix.good.astype(int).tolist(),
        "wholes": matrix.wholes.tolist(),
    }
    mark = hashlib.blake2b(repr(table).encode(errors="replace"), digest_size=8).hexdigest()
    data = {"table": table, "mark": mark, "chosen": list(chosen) if chosen else None}
    component(SCRIPT)(key=key, data=data, on_cell_change=on_pick, height="content")


def picked(key: str) -> tuple[int, int] | None:
    """Return row and column of the cell that was clicked last; -1 for the name of a row or a column."""
    cell: Any = getattr(st.session_state.get(key), "cell", None)
    try:
        return int(cell["row"]), int(cell["column"])
    except (TypeError, KeyError, ValueError):
        return None
