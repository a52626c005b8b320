"""Which predictions to show, in which order, and the controls that choose it. All stand in the URL."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.markup import one_of
from labkit.analysis.predictions import Indices, Predictions

# What the examples can be sorted by, for the reader.
ORDERS = {
    "confidence": "the most confident mistakes first",
    "margin": "the smallest margin first",
    "loss": "the largest loss first",
    "forgetting": "the most often forgotten first",
}
EVERY_SHARE = (0.0, 1.0)


@dataclass(frozen=True)
class Filters:
    """What examples must fulfil to be shown. None: anything.

    ``true``, ``predicted``: a class that the example has, or is predicted to have. ``missed``: a class that
    it has and isn't predicted to have. ``added``: a class that it is wrongly predicted to have. ``right``:
    whether the prediction is right. ``confidence`` and ``loss``: lowest and highest value; examples without
    a number (NaN) are within none but ``EVERY_SHARE`` and None.
    """

    true: int | None = None
    predicted: int | None = None
    missed: int | None = None
    added: int | None = None
    right: bool | None = None
    confidence: tuple[float, float] = EVERY_SHARE
    loss: tuple[float, float] | None = None

    def kept(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Return which examples fulfil all of it, bool [n]."""
        has, given = predictions.has, predictions.given
        kept = np.ones(len(predictions), bool)
        if self.true is not None:
            kept &= has[:, self.true]
        if self.predicted is not None:
            kept &= given[:, self.predicted]
        if self.missed is not None:
            kept &= has[:, self.missed] & ~given[:, self.missed]
        if self.added is not None:
            kept &= ~has[:, self.added] & given[:, self.added]
        if self.right is not None:
            kept &= predictions.wrong != self.right
        if self.confidence != EVERY_SHARE:
            kept &= _within(predictions.confidence, self.confidence)
        if self.loss is not None:
            kept &= _within(predictions.losses, self.loss)
        return kept


def _within(values: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.bool_]:
    return np.asarray((values >= limits[0]) & (values <= limits[1]))


def chosen(
    predictions: Predictions,
    filters: Filters = Filters(),
    order: str = "confidence",
    forgotten: NDArray[np.int64] | None = None,
) -> Indices:
    """Return the positions of the examples that fulfil ``filters``, int [m], in an order of ``ORDERS``.

    Equal ones stand as in ``confidence``.

    Args:
        predictions: of a split.
        filters: what the examples must fulfil.
        order: ``confidence``: mistakes by confidence, then right ones, the least confident first.
            ``margin``: by how undecided the network is. ``loss``: NaN first.
        forgotten: how often each example was forgotten, int [n]; without it, ``forgetting`` is
            ``confidence``.
    """
    first = predictions.wrong_first
    first = first[filters.kept(predictions)[first]]
    if order == "margin":
        rank: NDArray[Any] = predictions.margin  # NaN last
    elif order == "loss":
        rank = -np.nan_to_num(predictions.losses, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    elif order == "forgetting" and forgotten is not None:
        rank = -forgotten
    else:
        return first
    return first[np.argsort(rank[first], kind="stable")]


ANY = "any class"  # not "any", which is the name of a class in some data sets
VERDICTS = {"All": None, "Right": True, "Wrong": False}
CLASS_FILTERS = ("true", "predicted", "missed", "added")


def choose(predictions: Predictions) -> tuple[Filters, str]:
    """Draw the controls; return the filters and the order."""
    classes = predictions.classes
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        picked = {"true": _class("True class", "true", classes)}
        picked["predicted"] = _class("Predicted class", "predicted", classes)
        verdict = one_of("Show", VERDICTS, "show")
        order = st.selectbox(
            "Sort by",
            list(ORDERS),
            key="sort",
            bind="query-params",
            width=140,
            help="Confidence of the mistake; margin between the two largest probabilities; loss; forgetting: "
            "between how many kept checkpoints an image went from right to wrong.",
        )
        with st.popover("More", icon=":material/filter_alt:"):
            confidence, loss = _ranges(predictions)
            if predictions.multi_label:
                picked["missed"] = _class("Missed label", "missed", classes)
                picked["added"] = _class("Wrongly added label", "added", classes)
        filters = Filters(
            **{name: None if value == ANY else classes.index(value) for name, value in picked.items()},
            right=VERDICTS[verdict],
            confidence=confidence,
            loss=loss,
        )
        st.button("Clear", on_click=_clear, icon=":material/filter_alt_off:", disabled=filters == Filters())
    return filters, str(order)


def _class(label: str, key: str, classes: Sequence[str]) -> str:
    return str(st.selectbox(label, [ANY, *classes], key=key, bind="query-params", width=140))


def _ranges(predictions: Predictions) -> tuple[tuple[float, float], tuple[float, float] | None]:
    name = "Largest error of a label" if predictions.multi_label else "Confidence"
    confidence = st.slider(name, *EVERY_SHARE, EVERY_SHARE, 0.01, key="confidence", bind="query-params")
    losses = predictions.losses[np.isfinite(predictions.losses)]
    top = math.ceil(float(losses.max(initial=0.0)) * 10) / 10
    if top <= 0:
        return confidence, None
    every = (0.0, top)
    before = st.session_state.get("loss")
    if before and before[1] > top:  # it was chosen for predictions with larger losses
        st.session_state["loss"] = (min(before[0], top), top)
    loss = st.slider("Loss in nats", 0.0, top, every, 0.1, key="loss", bind="query-params")
    return confidence, None if loss == every else loss


def _clear() -> None:
    known = {**dict.fromkeys(CLASS_FILTERS, ANY), "show": "All", "confidence": EVERY_SHARE}
    known["loss"] = (0.0, float("inf"))  # is limited to the largest loss when the page is drawn
    st.session_state.update({name: value for name, value in known.items() if name in st.session_state})


def open_cell(predictions: Predictions, row: int, column: int) -> None:
    """Filter by a cell that was clicked, of the confusion matrix or the table of labels; -1: any.

    Called before the page is drawn again.
    """
    numbers = {"true": row, "predicted": column}
    if predictions.multi_label:
        of_column = {-1: ("true",), 0: ("true", "predicted"), 1: ("missed",), 2: ("added",)}[column]
        numbers = {name: row if name in of_column else -1 for name in CLASS_FILTERS}
    for name, number in numbers.items():
        st.session_state[name] = ANY if number < 0 else predictions.classes[number]


def open_cell_of(predictions: Predictions, filters: Filters) -> tuple[int, int] | None:
    """Return the cell that the filters open, row and column; -1 for a whole row or column."""
    chosen = {name: number for name in CLASS_FILTERS if (number := getattr(filters, name)) is not None}
    if not chosen:
        return None
    if not predictions.multi_label:
        return chosen.get("true", -1), chosen.get("predicted", -1)
    for column, name in ((1, "missed"), (2, "added")):
        if name in chosen:
            return chosen[name], column
    if "true" not in chosen:
        return None
    return chosen["true"], 0 if chosen.get("predicted") == chosen["true"] else -1
