"""The predictions of two runs or two checkpoints for the same images, side by side."""

from dataclasses import dataclass
from html import escape

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import state
from app.address import image_address, page_below
from app.images import cards
from app.images.sections import same_data
from app.markup import number_text, one_of, plain
from app.predictions.images import PAGE_SIZE, part_of
from app.predictions.source import Source, choose_checkpoint, predictions_of
from labkit.analysis.predictions import Indices, Predictions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

# What became of an image, for the reader.
OUTCOMES = {
    "both right": (True, True),
    "only A": (True, False),
    "only B": (False, True),
    "both wrong": (False, False),
}


@dataclass(frozen=True)
class Pair:
    """Two predictions ``a`` and ``b`` of the same images.

    ``in_a`` and ``in_b``: int [m], the positions of each common image in them.
    """

    a: Predictions
    b: Predictions
    in_a: Indices
    in_b: Indices

    def __len__(self) -> int:
        return len(self.in_a)

    def outcome(self, name: str) -> NDArray[np.bool_]:
        """Return which images have an outcome of ``OUTCOMES``, bool [m]."""
        right_a, right_b = OUTCOMES[name]
        wrong_a, wrong_b = self.a.wrong[self.in_a], self.b.wrong[self.in_b]
        return np.asarray((wrong_a != right_a) & (wrong_b != right_b))

    @property
    def disagree(self) -> NDArray[np.bool_]:
        """For which images the predictions differ, in any label, bool [m]."""
        return np.asarray((self.a.given[self.in_a] != self.b.given[self.in_b]).any(axis=1))

    def order(self, outcome: str | None = None) -> Indices:
        """Return positions among the common images: where the two differ first, the surest of these first.

        Args:
            outcome: of ``OUTCOMES``; None: all images.
        """
        distance = np.abs(self.a.probabilities[self.in_a] - self.b.probabilities[self.in_b])
        rank = np.nan_to_num(distance.max(axis=1, initial=0.0), nan=np.inf)
        order = np.lexsort((-rank, ~self.disagree))
        return order if outcome is None else order[self.outcome(outcome)[order]]


def paired(a: Predictions, b: Predictions) -> Pair:
    """Match two predictions by the position of the images in the split.

    Raises InputError if they have other classes, other labels, or no image in common.
    """
    if a.classes != b.classes:
        raise InputError("the two predictions have different classes, so they can't be compared")
    _, in_a, in_b = np.intersect1d(a.index, b.index, return_indices=True)
    if not len(in_a):
        raise InputError("the two predictions have no image in common")
    if a.multi_label != b.multi_label or not np.array_equal(a.labels[in_a], b.labels[in_b]):
        raise InputError("the two predictions have different labels, so they aren't of the same data")
    return Pair(a, b, in_a, in_b)


THIS = "this run"
ALL = "all"


def panel(source: Source, predictions: Predictions) -> None:
    """Draw the choice of the other predictions, and both. Not for use within a fragment."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        run = _other_run(source.run)
        other = choose_checkpoint(run, source.split, "other_checkpoint", "Checkpoint of B", unlike=source)
    if other == source:
        st.info(
            "Choose another checkpoint or another run for B: it shows the same predictions as A.",
            icon=":material/compare:",
        )
        return
    theirs = predictions_of(other, run, source.split)
    if theirs is None or other is None:
        return
    try:
        pair = paired(predictions, theirs)
    except InputError as error:
        st.warning(plain(str(error)).capitalize() + ".", icon=":material/difference:")
        return
    st.html(_names(source, predictions, other, theirs))
    _both(source, pair)


def _other_run(run: RunDirectory) -> RunDirectory:
    others = same_data(run)
    picked = st.selectbox(
        "Run of B",
        [THIS, *others],
        key="other_run",
        bind="query-params",
        width=240,
        help="Runs that were trained on the same data.",
    )
    return others.get(str(picked), run) if picked != THIS else run


def _names(source: Source, predictions: Predictions, other: Source, theirs: Predictions) -> str:
    parts = []
    for name, place, shown in (("A", source, predictions), ("B", other, theirs)):
        step = shown.summary.get("checkpoint_step")
        at = f" at step {step:,}" if isinstance(step, int) else ""
        accuracy = number_text(float(1 - shown.wrong.mean()) if len(shown) else None, ".2%")
        parts.append(f"<b>{name}</b>: {escape(state.clean(place.run.name))}{at}, {accuracy} right")
    return f"<div>{' · '.join(parts)}</div>"


@st.fragment
def _both(source: Source, pair: Pair) -> None:
    counts = {name: int(pair.outcome(name).sum()) for name in OUTCOMES}
    names = {ALL: f"All {len(pair):,}"} | {
        name: f"{name}{' right' * name.startswith('only')} {count:,}" for name, count in counts.items()
    }

    picked = one_of("Right are", names, "outcome", bind=None, format_func=names.get)
    order = pair.order(None if picked == ALL else picked)
    if not len(order):
        st.info("No image matches this selection.")
        return
    disagreeing = int(pair.disagree.sum())
    page, above = page_below(len(order), PAGE_SIZE, "pair_page", picked, bound=True)
    with above, cards.readable():
        part = part_of(order, page, f"disagreement first ({disagreeing:,} images differ).")
        st.html(cards.grid(cards_of(pair, part, source.split), 104))


def cards_of(pair: Pair, places: Indices, split: str, run: str | None = None) -> list[cards.Card]:
    """Return a card for each of these common images. Raises InputError if their data set is gone.

    ``run``: the label of the run whose page of the image a click opens; None: the selected one.
    """
    in_a, in_b = pair.in_a[places], pair.in_b[places]
    made = []
    for a, b, image in zip(in_a.tolist(), in_b.tolist(), pair.a.images[in_a], strict=True):
        true, number = pair.a.names(pair.a.has[a]), int(pair.b.index[b])
        first, second = pair.a.names(pair.a.given[a]), pair.b.names(pair.b.given[b])
        alt = f"{split.capitalize()} image {number}: {true}, predicted {first} by A and {second} by B"
        lines = [cards.verdict(pair.a, a, "A "), cards.verdict(pair.b, b, "B "), (f"true: {true}", "")]
        kind = "wrong" if pair.a.wrong[a] and pair.b.wrong[b] else "right"
        made.append(cards.Card(image, lines, image_address(split, number, run), kind, alt))
    return made
