"""The board of charts as a Streamlit component: uPlot (in ``assets/``) on a canvas, updated in place."""

import gc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from app.state import clean

__all__ = [
    "draw",
    "draw_heat",
    "follow",
    "key_of",
    "prepare",
    "scroll_anchor",
    "shown_window",
    "spare_the_collector",
]

ASSETS = Path(__file__).parent / "assets"

# A component's code is sent again with each of its updates, so what is updated every second holds one call.
CALL = """
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  let stopped = false;
  const render = () => {
    if (stopped) return;
    if (!globalThis.labkitBoard) { setTimeout(render, 30); return; }
    globalThis.labkitBoard.render(parentElement, data, setStateValue, setTriggerValue);
  };
  render();
  return () => { stopped = true; globalThis.labkitBoard?.leave(parentElement); };
}
"""


# What asks for the newest state. "stale" makes Streamlit draw the page again.
CALL_FEED = """
export default function ({ data, parentElement, setTriggerValue }) {
  let stopped = false;
  const start = () => {
    if (stopped) return;
    if (!globalThis.labkitFeed) { setTimeout(start, 30); return; }
    globalThis.labkitFeed.follow(parentElement, data, () => setTriggerValue('stale', Date.now()));
  };
  start();
  return () => { stopped = true; };
}
"""

# The same for a heat map, which reports nothing.
CALL_HEAT = """
export default function ({ data, parentElement }) {
  let stopped = false;
  const render = () => {
    if (stopped) return;
    if (!globalThis.labkitHeat) { setTimeout(render, 30); return; }
    globalThis.labkitHeat.render(parentElement, data);
  };
  render();
  return () => { stopped = true; globalThis.labkitHeat?.leave(parentElement); };
}
"""


@cache
def _code() -> tuple[str, str]:
    script = "\n".join(
        (ASSETS / name).read_text() for name in ("uPlot.iife.min.js", "board.js", "feed.js", "heat.js")
    )
    style = (ASSETS / "uPlot.min.css").read_text() + "\n" + (ASSETS / "board.css").read_text()
    return script, style


@st.cache_resource(show_spinner=False)
def spare_the_collector() -> None:
    """Leave what is loaded by now, mostly code, out of later garbage collections.

    Streamlit collects after each run of a script or a fragment. That took two thirds of a refresh.
    """
    gc.collect()
    gc.freeze()


def prepare() -> None:
    """Load the code of the charts (some 70 KB) into the page. Call it once a page, outside of fragments."""
    spare_the_collector()
    script, style = _code()
    st.components.v2.component("labkit_board_code", js=script, css=style, isolate_styles=False)(
        key="board-code", height=1
    )


def key_of(*parts: object) -> str:
    """Return the key of a component, made of ``parts`` such as the path of a run.

    Streamlit refuses two underscores in a row there, and a path may have them.
    """
    return clean("-".join(map(str, parts))).replace("_", "_.")


def draw(
    board: bytes,
    *,
    key: str,
    on_window: Callable[[], None] | None = None,
    on_pick: Callable[[], None] | None = None,
) -> Any:
    """Draw a board made by ``encode``, or update the one drawn under ``key``.

    Args:
        board: what to draw.
        key: of the component.
        on_window: is called after a zoom; ``window`` of the component's state is then the part of the axis
            as ``[low, high]``, or empty for all.
        on_pick: is called after a click on a point of a line with ``pick``; ``picked`` is then its chart,
            line, x and y.

    Returns the component's state.
    """
    frame = st.components.v2.component("labkit_board", js=CALL, isolate_styles=False)
    nothing = lambda: None  # noqa: E731 - Streamlit only reports states that have a callback
    return frame(
        key=key,
        data=board,
        height="content",
        on_window_change=on_window or nothing,
        on_picked_change=on_pick or nothing,
    )


def follow(address: str, seconds: float, *, key: str) -> None:
    """Let the page fetch its figures and boards every ``seconds`` from an ``address`` of app/feed.py.

    What is drawn around it is drawn again when a part of it has changed, or the address isn't known any more.
    """
    st.components.v2.component("labkit_feed", js=CALL_FEED, isolate_styles=False)(
        key=key, data={"address": address, "seconds": seconds}, height=1, on_stale_change=lambda: None
    )


def draw_heat(heat: bytes, *, key: str) -> None:
    """Draw a heat map made by ``encode_heat``, or update the one drawn under ``key``."""
    st.components.v2.component("labkit_heat", js=CALL_HEAT, isolate_styles=False)(
        key=key, data=heat, height="content"
    )


def shown_window(key: str) -> tuple[float, float] | None:
    """Return the part of the axis that a person has zoomed into on the board ``key``; None: all."""
    window = st.session_state.get(key, {}).get("window")
    try:
        low, high = map(float, window)
    except (TypeError, ValueError):  # nothing is known, or the list is empty: the whole axis
        return None
    return low, high


# Another token than the last one scrolls to the anchor, unless the reader scrolls first.
SCROLL = """
export default function ({ data, parentElement }) {
  parentElement.style.scrollMarginTop = '4rem';
  if (globalThis.labkitScrolledFor === data.token) return;
  globalThis.labkitScrolledFor = data.token;
  let left = false;
  const leave = () => { left = true; };
  for (const kind of ['wheel', 'touchstart', 'keydown', 'pointerdown'])
    addEventListener(kind, leave, { once: true });
  const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
  const scroll = () => {
    if (left || !parentElement.isConnected) return;
    parentElement.scrollIntoView({ block: 'start', behavior: calm ? 'auto' : 'smooth' });
  };
  for (const wait of [120, 700, 1500, 3000]) setTimeout(scroll, wait); // other parts may still come
  parentElement.tabIndex = -1;
  parentElement.style.outline = 'none';
  parentElement.setAttribute('aria-label', data.label);
  parentElement.focus({ preventScroll: true });
}
"""


def scroll_anchor(label: str, token: int, *, key: str) -> None:
    """Draw a place that the page scrolls to, and that gets the focus, whenever ``token`` changes.

    Args:
        label: what stands there, for screen readers.
        token: of the last wish to scroll.
        key: of the component.
    """
    st.components.v2.component("labkit_anchor", js=SCROLL, isolate_styles=False)(
        key=key, data={"token": token, "label": label}, height=1
    )
