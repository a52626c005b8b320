"""A picture on which the reader drags a rectangle. Sliders beside it do the same for the keyboard."""

from collections.abc import Callable
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images.cards import SMALL, data_uri
from app.images.what_if import Rectangle

__all__ = ["dragged", "drawing"]

CSS = """
.lk-drag { position: relative; width: 100%; max-width: 360px; touch-action: none; cursor: crosshair;
           border-radius: 6px; overflow: hidden; user-select: none; }
.lk-drag img { width: 100%; display: block; image-rendering: pixelated; pointer-events: none; }
.lk-drag .lk-part { position: absolute; border: 2px dashed #ffffff; outline: 2px solid #1f5fbf;
                    box-sizing: border-box; pointer-events: none; }
"""

# The function is called for each new picture and reuses the host element.
JS = """
export default function ({ data, parentElement, setStateValue }) {
  let host = parentElement.querySelector('.lk-drag');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-drag';
    host.appendChild(document.createElement('img'));
    const part = document.createElement('div');
    part.className = 'lk-part';
    host.appendChild(part);
    parentElement.appendChild(host);
  }
  const image = host.querySelector('img'), part = host.querySelector('.lk-part');
  host.dataset.width = data.width;
  host.dataset.height = data.height;
  image.alt = data.label;
  if (image.src !== data.source) image.src = data.source;
  image.style.imageRendering = Math.max(data.width, data.height) > data.small ? 'auto' : 'pixelated';
  const place = ({ left, top, width, height }) => {
    part.style.display = width > 0 && height > 0 ? 'block' : 'none';
    part.style.left = 100 * left / data.width + '%';
    part.style.top = 100 * top / data.height + '%';
    part.style.width = 100 * width / data.width + '%';
    part.style.height = 100 * height / data.height + '%';
  };
  if (!host.start) place(data.part);
  const at = (event) => {
    const box = host.getBoundingClientRect();
    const limited = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value)));
    return [limited((event.clientX - box.left) / box.width * data.width, data.width),
            limited((event.clientY - box.top) / box.height * data.height, data.height)];
  };
  const between = ([x, y], [u, v]) => ({
    left: Math.min(x, u), top: Math.min(y, v), width: Math.abs(x - u) + 1, height: Math.abs(y - v) + 1 });
  host.onpointerdown = (event) => {
    host.start = at(event);
    host.setPointerCapture(event.pointerId);
    event.preventDefault();
  };
  host.onpointermove = (event) => { if (host.start) place(between(host.start, at(event))); };
  host.onpointerup = (event) => {
    if (!host.start) return;
    const drawn = between(host.start, at(event));
    host.start = null;
    setStateValue('drawn', { ...drawn, time: Date.now() });
  };
  host.onpointercancel = () => { host.start = null; place(data.part); };
}
"""


def drawing(
    image: NDArray[np.uint8], part: Rectangle, *, key: str, label: str, on_drawn: Callable[[], None]
) -> None:
    """Draw an image on which a rectangle can be dragged.

    Args:
        image: uint8 [height, width, channels].
        part: the rectangle to show at first.
        key: of the widget; ``dragged`` reads what was drawn.
        label: describes the picture to those who can't see it.
        on_drawn: called when a rectangle was dragged, before the page is drawn again.
    """
    frame = st.components.v2.component("labkit_drag", css=CSS, js=JS, isolate_styles=False)
    height, width = image.shape[:2]
    shown = {"left": part.left, "top": part.top, "width": part.width, "height": part.height}
    content = {
        "source": data_uri(image),
        "width": width,
        "height": height,
        "small": SMALL,
        "part": shown,
        "label": label,
    }
    frame(key=key, data=content, on_drawn_change=on_drawn)


def dragged(key: str) -> Rectangle | None:
    """Return the rectangle that was dragged last on the drawing of this key."""
    drawn: Any = getattr(st.session_state.get(key), "drawn", None)
    try:
        return Rectangle(*(int(drawn[name]) for name in ("left", "top", "width", "height")))
    except (TypeError, KeyError, ValueError):
        return None
