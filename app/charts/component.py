"""The board of charts as a Streamlit component: uPlot (in ``assets/``) on a canvas, updated in place."""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from app import feed
from app.charts.board import Chart, Window, encode
from app.markup import component
from app.state import clean

ASSETS = Path(__file__).parent / "assets"
Made = TypeVar("Made")

# A component's code is sent again with each of its updates, so what is updated every second holds one call.
CALL = """
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  let stopped = false;
  const render = () => {
    if (stopped) return;
    if (!globalThis.NAME) { setTimeout(render, 30); return; }
    globalThis.NAME.render(parentElement, data, setStateValue, setTriggerValue);
  };
  render();
  return () => { stopped = true; globalThis.NAME?.leave?.(parentElement); };
}
"""


def _calling(name: str) -> Any:
    """Return the component that calls what ``prepare`` has loaded: ``Board`` or ``Heat``."""
    code = CALL.replace("NAME", f"labkit{name}")
    return st.components.v2.component(f"labkit_{name.lower()}", js=code, isolate_styles=False)


@cache
def code(*names: str) -> str:
    """Return the text of files of ``assets/``, one after the other."""
    return "\n".join((ASSETS / name).read_text() for name in names)


def prepare() -> None:
    """Load the code of the charts (some 70 KB) into the page. Call it once a page, outside of fragments."""
    script = code("uPlot.iife.min.js", "board.js", "heat.js")
    style = code("uPlot.min.css", "board.css")
    load = st.components.v2.component("labkit_board_code", js=script, css=style, isolate_styles=False)
    load(key="board-code", height=1)


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
    nothing = lambda: None  # noqa: E731 - Streamlit only reports states that have a callback
    return _calling("Board")(
        key=key,
        data=board,
        height="content",
        on_window_change=on_window or nothing,
        on_picked_change=on_pick or nothing,
    )


def draw_charts(
    key: str, wanted: Hashable, make: Callable[[Window | None], Sequence[Chart]], **settings: Any
) -> bool:
    """Draw charts on a board with a zoom of its own. Returns whether there are any.

    Args:
        key: of the component.
        wanted: what the charts depend on, beside the zoom.
        make: returns the charts. It gets the part of the axis that is shown; None: all.
        settings: of ``encode``.
    """
    window = shown_window(key)

    def board() -> bytes | None:
        charts = make(window)
        return encode(charts, window=window, **settings) if charts else None

    if (encoded := made(f"{key} made", (wanted, window), board)) is not None:
        draw(encoded, key=key)
    return encoded is not None


def follow(
    name: str, make: feed.Make, look: Callable[[], Hashable], seconds: float = feed.SPARE_APART_SECONDS
) -> None:
    """Let the page fetch the figures of its head, and its boards, whenever there are newer ones.

    What is drawn around it is drawn again when a part of it has changed, or the address isn't known any more.
    The first arguments are those of ``feed.offer``. ``seconds``: between two questions, at least.
    """
    data = {"address": feed.offer(name, make, look), "seconds": seconds}
    component(ASSETS / "feed.js")(key=key_of("feed", name), data=data, height=1, on_stale_change=lambda: None)


def draw_heat(heat: bytes, *, key: str) -> None:
    """Draw a heat map made by ``encode_heat``, or update the one drawn under ``key``."""
    _calling("Heat")(key=key, data=heat, height="content")


def shown_window(key: str) -> Window | None:
    """Return the part of the axis that a person has zoomed into on the board ``key``; None: all."""
    window = st.session_state.get(key, {}).get("window")
    try:
        low, high = map(float, window)
    except (TypeError, ValueError):  # nothing is known, or the list is empty: the whole axis
        return None
    return low, high


def scroll_anchor(label: str, token: int, *, key: str) -> None:
    """Draw a place that the page scrolls to, and that gets the focus, whenever ``token`` changes.

    Args:
        label: what stands there, for screen readers.
        token: of the last wish to scroll.
        key: of the component.
    """
    component(ASSETS / "anchor.js")(key=key, data={"token": token, "label": label}, height=1)


def made(name: str, wanted: Hashable, make: Callable[[], Made]) -> Made:
    """Return the charts of a place on the page, made again only where ``wanted`` is another than before."""
    known: tuple[Hashable, Made] | None = st.session_state.get(name)
    if known is None or known[0] != wanted:
        known = st.session_state[name] = wanted, make()
    return known[1]
