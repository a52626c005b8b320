"""Change an image a little, by controls or by dragging, and show what the network makes of it then."""

import io
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import streamlit as st
from numpy.typing import NDArray

from app import background
from app.images import cards, sections
from app.images.subject import Subject
from app.markup import component
from labkit.run_directory import RunDirectory

Image = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rectangle:
    """A part of an image, in pixels; it may reach over the edge. Without width or height it is empty."""

    left: int = 0
    top: int = 0
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Changes:
    """What is done to an image, in this order. The defaults change nothing.

    ``flip``: mirrors it left to right. ``rotate``: degrees, counter-clockwise. ``shift_x``, ``shift_y``:
    pixels to the right and downwards. ``blur``: standard deviation of a Gaussian, in pixels. ``brightness``:
    factor. ``noise``: standard deviation of Gaussian noise, in grey levels, drawn from ``seed``.
    ``jpeg_quality``: 1 to 100, or None for no compression. ``cover``: a part that gets the mean colour.
    """

    flip: bool = False
    rotate: float = 0.0
    shift_x: int = 0
    shift_y: int = 0
    blur: float = 0.0
    brightness: float = 1.0
    noise: float = 0.0
    seed: int = 0
    jpeg_quality: int | None = None
    cover: Rectangle = Rectangle()


def changed(image: Image, changes: Changes) -> Image:
    """Return a changed copy of an image. Pixels that become free get the image's mean colour.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels.
        changes: what to do.

    Raises ValueError for negative strengths and a JPEG quality out of range.
    """
    if changes.blur < 0 or changes.brightness < 0 or changes.noise < 0:
        raise ValueError("blur, brightness and noise can't be negative")
    from scipy import ndimage  # here, because no other page needs it

    mean: Floats = image.mean(axis=(0, 1))
    pixels = image - mean  # so that what becomes free is zero
    if changes.flip:
        pixels = pixels[:, ::-1]
    if changes.rotate % 360:
        pixels = ndimage.rotate(pixels, changes.rotate, reshape=False, order=1, mode="grid-constant")
    if changes.shift_x or changes.shift_y:
        pixels = ndimage.shift(pixels, (changes.shift_y, changes.shift_x, 0), order=0)
    if changes.blur:
        pixels = ndimage.gaussian_filter(pixels, changes.blur, axes=(0, 1), mode="nearest", truncate=3.0)
    pixels = (pixels + mean) * changes.brightness
    if changes.noise:
        pixels = pixels + np.random.default_rng(changes.seed).normal(0.0, changes.noise, pixels.shape)
    result = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    if changes.jpeg_quality is not None:
        result = _compressed(result, changes.jpeg_quality)
    part = changes.cover
    rows = slice(max(0, part.top), max(0, part.top + part.height))
    columns = slice(max(0, part.left), max(0, part.left + part.width))
    result[rows, columns] = np.rint(mean).astype(np.uint8)
    return result


def _compressed(image: Image, quality: int) -> Image:
    if not 1 <= quality <= 100:
        raise ValueError(f"jpeg_quality is {quality}; allowed: 1 to 100, or None")
    buffer = io.BytesIO()
    cards.pil_image(image).save(buffer, "JPEG", quality=quality)
    return np.array(PIL.Image.open(buffer)).reshape(image.shape)


def dragged(key: str) -> Rectangle | None:
    """Return the rectangle that was dragged last on the picture of this key."""
    drawn: Any = getattr(st.session_state.get(key), "drawn", None)
    try:
        return Rectangle(*(int(drawn[name]) for name in ("left", "top", "width", "height")))
    except (TypeError, KeyError, ValueError):
        return None


# The controls by the names of ``Changes`` and ``Rectangle``, and what each holds at first: its default, for
# a value assigned to the session is lost if the reader acts before the browser has drawn the control, see
# app/acting/form.py.
NEUTRAL: dict[str, Any] = vars(Changes()) | vars(Rectangle()) | {"jpeg_quality": "off"}
del NEUTRAL["cover"]
QUALITIES = ["off", 95, 90, 80, 70, 60, 50, 40, 30, 20, 10, 5, 1]
BARS = 6
DRAG = Path(__file__).parent / "assets" / "drag.js"
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
    image, part, words = changed(subject.image, changes), changes.cover, "Nothing is covered."
    if part != Rectangle():
        words = (
            f"{part.width} by {part.height} pixels from column {part.left} and row {part.top} are covered."
        )
    with left:
        st.caption("Drag on the picture to cover a part of it.")
        picture = {
            "source": cards.data_uri(image),
            "width": image.shape[1],
            "height": image.shape[0],
            "small": cards.SMALL,
            "part": vars(part),
            "label": f"The changed image. To cover a part, drag, or use the sliders. {words}",
        }
        component(DRAG)(key="wi-drawing", data=picture, on_drawn_change=_take_drawn)
        # Below the picture, so that both are in sight on a telephone, too.
        _prediction(run, step, subject, image, before)
        neutral = {f"wi-{name}": value for name, value in NEUTRAL.items()}
        take_back = partial(st.session_state.update, neutral)
        same = changes == Changes()
        st.button("Reset", icon=":material/restart_alt:", on_click=take_back, disabled=same)


def _controls(height: int, width: int) -> Changes:
    def slider(label: str, name: str, low: float, high: float, **settings: Any) -> None:
        st.slider(label, low, high, NEUTRAL[name], key=f"wi-{name}", **settings)

    first, second = st.columns(2)
    with first:
        slider("Shift to the right, pixels", "shift_x", -width // 2, width // 2)
        slider("Shift downwards, pixels", "shift_y", -height // 2, height // 2)
        slider("Turn, degrees", "rotate", -180.0, 180.0, step=1.0, format="%d")
        st.toggle("Flip left to right", key="wi-flip")
        slider("Blur, pixels", "blur", 0.0, 4.0, step=0.1)
        slider("Brightness, factor", "brightness", 0.0, 2.0, step=0.05)
    with second:
        slider("Noise, grey levels", "noise", 0.0, 100.0, step=1.0, format="%d")
        slider("Seed of the noise", "seed", 0, 20, disabled=not st.session_state["wi-noise"])
        st.select_slider("JPEG quality", QUALITIES, NEUTRAL["jpeg_quality"], key="wi-jpeg_quality")
        with st.expander("Cover a part"):
            slider("Left edge, pixels", "left", 0, width)
            slider("Upper edge, pixels", "top", 0, height)
            slider("Width, pixels", "width", 0, width)
            slider("Height, pixels", "height", 0, height)
    chosen = {name: st.session_state[f"wi-{name}"] for name in NEUTRAL}
    part = Rectangle(*(chosen.pop(name) for name in vars(Rectangle())))
    chosen["cover"] = part if part.width and part.height else Rectangle()
    chosen["jpeg_quality"] = None if chosen["jpeg_quality"] == "off" else chosen["jpeg_quality"]
    return Changes(**chosen | ({} if chosen["noise"] else {"seed": 0}))


def _take_drawn() -> None:
    part = dragged("wi-drawing")
    if part is not None:
        st.session_state.update({f"wi-{name}": value for name, value in vars(part).items()})


def _prediction(
    run: RunDirectory, step: int, subject: Subject, image: NDArray[np.uint8], before: NDArray[Any]
) -> None:
    asked = sections.prediction(run, step, image)
    end = time.monotonic() + ANSWER_SECONDS
    while not asked.wait(0.1) and time.monotonic() < end:
        pass  # Streamlit can end a page that nobody looks at any more
    if not asked.done:
        st.caption("The network is busy with something else. Move a control to ask again.")
        return
    after = background.result_of(asked, "what-if")
    if after is None:
        return
    names = [subject.in_words(values) for values in (before, after)]
    # In HTML, because names of classes may hold anything.
    st.html(
        cards.sentence(f"Still {names[1]}" if names[0] == names[1] else f"Now {names[1]}, was {names[0]}")
    )
    if subject.are_numbers:
        return
    st.html(subject.bars(after, BARS, named=False, before=before))
    loss = subject.loss(after)
    losses = "" if loss is None else f" Loss {loss:.4f}, unchanged {subject.loss(before):.4f}."
    st.caption(f"The line in a bar is the value for the unchanged image.{losses}")
