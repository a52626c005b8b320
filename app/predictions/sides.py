"""Two runs or two checkpoints side by side: the same images with both predictions, disagreement first."""

from html import escape

import streamlit as st

from app import state
from app.images.links import image_address
from app.images.sections import same_data
from app.images.text import plain
from app.paging import page_of
from app.predictions.images import PAGE_SIZE, part_of
from app.predictions.pairs import OUTCOMES, Pair, paired
from app.predictions.source import Source, choose_checkpoint, predictions_of
from app.predictions.tiles import pair_tiles
from labkit.analysis.predictions import Predictions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["panel"]

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
        accuracy = f"{1 - shown.wrong.mean():.2%}" if len(shown) else "–"
        parts.append(f"<b>{name}</b>: {escape(state.clean(place.run.name))}{at}, {accuracy} right")
    return f"<div>{' · '.join(parts)}</div>"


@st.fragment
def _both(source: Source, pair: Pair) -> None:
    counts = {name: int(pair.outcome(name).sum()) for name in OUTCOMES}
    names = {ALL: f"All {len(pair):,}", **{name: f"{name} {count:,}" for name, count in counts.items()}}

    def first_page() -> None:
        st.session_state["pair_page"] = 1

    picked = st.segmented_control(
        "Right are",
        list(names),
        default=ALL,
        format_func=lambda name: (
            names[name].replace("only A", "only A right").replace("only B", "only B right")
        ),
        key="outcome",
        required=True,
        on_change=first_page,
    )
    order = pair.order(None if picked in (ALL, None) else str(picked))
    if not len(order):
        st.info("No image matches this selection.")
        return
    disagreeing = int(pair.disagree.sum())
    above, below = st.container(), st.container()
    with below:
        page = page_of(len(order), PAGE_SIZE, "pair_page", bound=True)
    with above:
        part = part_of(order, page, f"disagreement first ({disagreeing:,} images differ).")
        try:
            st.html(pair_tiles(pair, part, source.split, lambda index: image_address(source.split, index)))
        except InputError as error:
            st.warning(plain(f"The images can't be read: {error}"), icon=":material/image_not_supported:")
