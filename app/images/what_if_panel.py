"""What if the image were a little different: controls, the changed image, and the prediction for it."""

from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import background
from app.images import cards, drag, sections
from app.images.subject import Subject, given_by
from app.images.what_if import Changes, Rectangle, changed
from labkit.run_directory import RunDirectory

__all__ = ["panel"]

# What each control holds at first: its default, because a value assigned to the session is lost if the reader
# acts before the browser has drawn the control (app/acting/form.py).
NEUTRAL: dict[str, Any] = {
    "wi-x": 0,
    "wi-y": 0,
    "wi-turn": 0,
    "wi-flip": False,
    "wi-blur": 0.0,
    "wi-bright": 1.0,
    "wi-noise": 0,
    "wi-seed": 0,
    "wi-jpeg": "off",
    "wi-left": 0,
    "wi-top": 0,
    "wi-width": 0,
    "wi-height": 0,
}
QUALITIES = ["off", 95, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1]
ANSWER_SECONDS = 20.0  # that a change waits for the network, which is loaded and answers in milliseconds


@st.fragment
def panel(run: RunDirectory, step: int, subject: Subject, before: NDArray[Any]) -> None:
    """Draw the panel. It is drawn again by itself when a control is moved.

    Args:
        run: the run directory.
        step: of the checkpoint that is asked.
        subject: the image.
        before: probabilities for the unchanged image [classes].
    """
    left, right = st.columns([2, 3], gap="large")
    with right:
        changes = _controls(*subject.image.shape[:2])
    image = changed(subject.image, changes)
    with left:
        st.caption("Drag on the picture to cover a part of it.")
        drag.drawing(
            image,
            changes.cover,
            key="wi-drawing",
            label=f"The changed image. To cover a part, drag, or use the sliders. {_cover_words(changes)}",
            on_drawn=_take_drawn,
        )
        # Below the picture, so that both are in sight on a telephone, too.
        _prediction(run, step, subject, image, before)
        st.button("Reset", icon=":material/restart_alt:", on_click=_reset, disabled=changes == Changes())


def _controls(height: int, width: int) -> Changes:
    first, second = st.columns(2)
    with first:
        st.slider("Shift to the right, pixels", -width // 2, width // 2, NEUTRAL["wi-x"], key="wi-x")
        st.slider("Shift downwards, pixels", -height // 2, height // 2, NEUTRAL["wi-y"], key="wi-y")
        st.slider("Turn, degrees", -180, 180, NEUTRAL["wi-turn"], key="wi-turn")
        st.toggle("Flip left to right", key="wi-flip")
        st.slider("Blur, pixels", 0.0, 4.0, step=0.1, key="wi-blur")
        st.slider("Brightness, factor", 0.0, 2.0, NEUTRAL["wi-bright"], step=0.05, key="wi-bright")
    with second:
        st.slider("Noise, grey levels", 0, 100, key="wi-noise")
        st.slider("Seed of the noise", 0, 20, key="wi-seed", disabled=not st.session_state["wi-noise"])
        st.select_slider("JPEG quality", QUALITIES, NEUTRAL["wi-jpeg"], key="wi-jpeg")
        with st.expander("Cover a part"):
            st.slider("Left edge, pixels", 0, width, key="wi-left")
            st.slider("Upper edge, pixels", 0, height, key="wi-top")
            st.slider("Width, pixels", 0, width, key="wi-width")
            st.slider("Height, pixels", 0, height, key="wi-height")
    chosen = {name: st.session_state[name] for name in NEUTRAL}
    return Changes(
        flip=chosen["wi-flip"],
        rotate=float(chosen["wi-turn"]),
        shift_x=chosen["wi-x"],
        shift_y=chosen["wi-y"],
        blur=chosen["wi-blur"],
        brightness=chosen["wi-bright"],
        noise=float(chosen["wi-noise"]),
        seed=chosen["wi-seed"] if chosen["wi-noise"] else 0,
        jpeg_quality=None if chosen["wi-jpeg"] == "off" else chosen["wi-jpeg"],
        cover=_cover(chosen),
    )


def _cover(chosen: dict[str, Any]) -> Rectangle:
    if not chosen["wi-width"] or not chosen["wi-height"]:
        return Rectangle()
    return Rectangle(*(chosen[f"wi-{name}"] for name in ("left", "top", "width", "height")))


def _cover_words(changes: Changes) -> str:
    part = changes.cover
    if part == Rectangle():
        return "Nothing is covered."
    return f"{part.width} by {part.height} pixels from column {part.left} and row {part.top} are covered."


def _take_drawn() -> None:
    part = drag.dragged("wi-drawing")
    if part is not None:
        values = {"left": part.left, "top": part.top, "width": part.width, "height": part.height}
        st.session_state.update({f"wi-{name}": value for name, value in values.items()})


def _reset() -> None:
    st.session_state.update(NEUTRAL)


def _prediction(
    run: RunDirectory, step: int, subject: Subject, image: NDArray[np.uint8], before: NDArray[Any]
) -> None:
    asked = sections.prediction(run, step, image)
    background.pause_until(asked, ANSWER_SECONDS)
    if not asked.done:
        st.caption("The network is busy with something else. Move a control to ask again.")
        return
    after = background.result_of(asked, "what-if")
    if after is None:
        return
    was, now = (given_by(shares, subject.multi_label) for shares in (before, after))
    names = [subject.names(which) for which in (was, now)]
    # In HTML, because names of classes may hold anything.
    st.html(
        cards.sentence(f"Still {names[1]}" if names[0] == names[1] else f"Now {names[1]}, was {names[0]}")
    )
    st.html(
        cards.change_bars(subject.classes, before, after, subject.has, now, known=subject.label is not None)
    )
    loss = subject.loss(after)
    losses = "" if loss is None else f" Loss {loss:.4f}, unchanged {subject.loss(before):.4f}."
    st.caption(f"The line in a bar is the value for the unchanged image.{losses}")
