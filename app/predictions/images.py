"""The images of a split beside the confusion matrix, which opens a cell's images in the grid."""

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.address import page_below
from app.charts.component import key_of
from app.images import cards, marking
from app.images.answers import KEEP_SOME
from app.markup import show_command
from app.predictions import filters, matrix
from app.predictions.filters import ORDERS, chosen
from app.predictions.kept import Forgotten, forgetting_question
from app.predictions.source import Source
from labkit.analysis.predictions import Predictions
from labkit.data.manifest import Manifest
from labkit.plurals import counted

PAGE_SIZE = 24


@st.fragment
def panel(
    source: Source, predictions: Predictions, forgotten: Forgotten | None, manifest: Manifest | None
) -> None:
    """Draw filters, images and matrix. A filter draws this part of the page again, and nothing else.

    ``manifest``: of the images' data set, in which they can be marked; None where it is gone.
    """
    if marking.changed():
        st.rerun()
    wanted, order = filters.choose(predictions)
    counts = _counts(predictions, forgotten)
    left, right = st.columns([9, 7], gap="small")
    with left:
        if order == "forgetting":
            _forgetting(source, forgotten, counts)
        positions = chosen(predictions, wanted, order, counts)
        _grid(source, predictions, positions, order, counts, manifest)
    with right:
        _matrix(source, predictions, wanted)


def _counts(predictions: Predictions, forgotten: Forgotten | None) -> NDArray[np.int64] | None:
    """Return how often each example was forgotten, int64 [n]; None if that isn't known."""
    index = predictions.index
    if forgotten is None or (len(index) and not 0 <= index.min() <= index.max() < len(forgotten.counts)):
        return None
    return forgotten.counts[index]


def _forgetting(source: Source, forgotten: Forgotten | None, counts: NDArray[np.int64] | None) -> None:
    steps, of = tuple(source.run.checkpoint_steps()), tuple[int, ...]()
    if counts is not None and forgotten is not None:
        of = forgotten.steps
        st.caption(
            f"{counted(int((counts > 0).sum()), 'image')} forgotten at least once between the "
            f"{len(of)} checkpoints of step {of[0]:,} to {of[-1]:,}."
        )
    elif len(steps) < 2:
        st.info("Forgetting needs at least two kept checkpoints. A run keeps more of them with:")
        show_command(KEEP_SOME)
    if len(steps) < 2 or set(steps) <= set(of):
        return
    label = "Compute forgetting" if counts is None else f"Compute again with {len(steps)} checkpoints"
    wanted = forgetting_question(source.run, source.split, steps)
    under_way = st.session_state.get("forgetting-asked") == wanted
    words = f"Evaluates {len(steps)} kept checkpoints."
    if st.button(label, icon=":material/history:", help=words, disabled=under_way):
        st.session_state["forgetting-asked"] = wanted
        st.rerun()


def part_of(positions: NDArray[np.intp], page: slice, words: str) -> NDArray[np.intp]:
    """Return the positions of a page, and say which these are."""
    st.caption(f"{page.start + 1:,}–{page.stop:,} of {len(positions):,}, {words}")
    return positions[page]


def _grid(
    source: Source,
    predictions: Predictions,
    positions: NDArray[np.intp],
    order: str,
    counts: NDArray[np.int64] | None,
    manifest: Manifest | None,
) -> None:
    if not len(positions):
        empty = not len(predictions)
        name = source.split.capitalize()
        st.info(f"{name} has no images." if empty else f"No {source.split} image matches this selection.")
        return
    shown_order = "confidence" if order == "forgetting" and counts is None else order

    def note(position: int) -> str:
        if order == "loss":
            return f"loss {predictions.losses[position]:.3f}"
        if order == "margin":
            return f"margin {predictions.margin[position]:.3f}"
        return f"forgotten {counts[position]}×" if order == "forgetting" and counts is not None else ""

    no_mistake = shown_order == "confidence" and not predictions.wrong[positions].any()
    first = "the least confident first" if no_mistake else ORDERS[shown_order]
    page, above = page_below(len(positions), PAGE_SIZE, "page", positions.tobytes(), bound=True)
    with above, cards.readable():
        part = part_of(positions, page, f"{first}.")
        split = source.split
        made = cards.prediction_cards(predictions, part, split, note, linked=True)
        if predictions.multi_label:
            st.html(cards.grid(made, 104))
            return
        shown = [
            marking.Markable(
                card,
                split,
                int(predictions.index[position]),
                int(predictions.labels[position]),
                int(predictions.predicted[position]),
            )
            for card, position in zip(made, part.tolist(), strict=True)
        ]
        marking.grid(manifest, [("", shown)], 104, "predictions-grid")


def _matrix(source: Source, predictions: Predictions, wanted: filters.Filters) -> None:
    if not len(predictions):
        return
    key = key_of("matrix", source.run.path, source.split)
    drawn = matrix.label_errors(predictions) if predictions.multi_label else matrix.confusion(predictions)
    limits = len(drawn.rows), len(drawn.columns)

    def pick() -> None:
        cell = matrix.picked(key)
        if cell is not None and -1 <= cell[0] < limits[0] and -1 <= cell[1] < limits[1]:
            filters.open_cell(predictions, *drawn.classes_of(cell))

    st.markdown("**Labels** · missed and wrongly added" if drawn.upright else "**Confusion matrix**")
    if drawn.numbers is not None:
        st.caption(
            f"The {limits[0]} of {len(predictions.classes):,} classes with the most mistakes. The filters "
            "and the table of classes have all."
        )
    opened = filters.open_cell_of(predictions, wanted)
    matrix.draw(drawn, drawn.cell_of(opened) if opened else None, key=key, on_pick=pick)
