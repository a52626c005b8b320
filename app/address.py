"""The pages, their addresses, and what an address keeps beside the widgets for links, Back and Forward."""

import time
from collections.abc import Hashable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

SETTLES = 1.0  # seconds in which the browser may still tell the address before a change


@dataclass
class _Kept:
    """A parameter as the address should have it, and when it was written; 0 if the browser told it."""

    value: str | None
    written: float = 0.0


def begin() -> None:
    """Note a change of the page: its address names no run. Call it when the script begins.

    Each page writes the run into its address, so one without it comes from the sidebar, which leaves the
    parameters out. What was shown before is kept then.
    """
    if "run" not in st.query_params:
        _all().clear()


def go(name: str, **parameters: Any) -> NoReturn:
    """Go to another page, which takes all from these parameters: as a whole, for each is a step of Back.

    What was written into the address of this page says nothing of that one, however short a time ago.
    """
    _all().clear()
    st.switch_page(page(name), query_params=parameters)


def follow(name: str, shown: str | None) -> str | None:
    """Return the value of a parameter that the page shall show; the address says so from now on.

    It is ``shown``, the value so far, unless the browser tells another one: from a link, or because the
    reader went Back or Forward. Call it where the whole page is drawn, not in a fragment.
    """
    kept = _all().get(name)
    told = st.query_params.get(name)
    if kept is None:
        by_reader = told is not None
    elif shown != kept.value:  # it was chosen just now
        by_reader = False
    elif told != shown and time.monotonic() - kept.written < SETTLES:
        return shown  # without another entry in the browser's history
    else:
        by_reader = told != shown
    if by_reader:
        _all()[name] = _Kept(told)
        return told
    show(name, shown)
    return shown


def show(name: str, value: str | None) -> None:
    """Write a parameter into the address; None removes it. Don't call it from a callback.

    A callback comes before ``follow``, which would take what is written for what the browser has told.
    """
    if st.query_params.get(name) == value:
        _all().setdefault(name, _Kept(value)).value = value
        return
    _all()[name] = _Kept(value, time.monotonic())
    if value is None:
        del st.query_params[name]
    else:
        st.query_params[name] = value


def _all() -> dict[str, _Kept]:
    return st.session_state.setdefault("address", {})


PAGES = (  # the module in app.views, title, icon, and path of the address
    ("runs", "Runs", "list", ""),
    ("start", "Start", "add_circle", "start"),
    ("live", "Live", "monitoring", "live"),
    ("layers", "Layers", "layers", "layers"),
    ("media", "Media", "perm_media", "media"),
    ("predictions", "Predictions", "grid_view", "predictions"),
    ("image", "Image", "image_search", "image"),
    ("data", "Data", "photo_library", "data"),
    ("image_map", "Map", "scatter_plot", "map"),
    ("compare", "Compare", "stacked_line_chart", "compare"),
    ("search", "Search", "manage_search", "search"),
    ("configuration", "Configuration", "tune", "configuration"),
)


def page(name: str, **settings: Any) -> Any:
    """Return a page for Streamlit's navigation, or as the target of a link.

    Args:
        name: of the module in ``app.views``; it is also the path of the address unless ``settings`` say so.
        settings: of ``st.Page``.
    """

    def draw() -> None:  # all modules together would take a second to import
        import_module(f"app.views.{name}").page()

    return st.Page(draw, **({"url_path": name} | settings))


def link(name: str, label: str, icon: str, help: str | None = None, **parameters: Any) -> None:
    """Draw a link to another page, which takes these parameters. ``icon``: a name of Material's."""
    st.page_link(page(name), label=label, icon=f":material/{icon}:", help=help, query_params=parameters)


def page_below(
    count: int, size: int, key: str, selection: Hashable = None, *, bound: bool = False
) -> tuple[slice, DeltaGenerator]:
    """Return what ``page_of`` does, with the numbers below the container that is returned, too."""
    above, below = st.container(), st.container()
    with below:
        return page_of(count, size, key, selection, bound=bound), above


def page_of(count: int, size: int, key: str, selection: Hashable = None, *, bound: bool = False) -> slice:
    """Return the places of the chosen page; where there are several, draw their numbers here.

    Args:
        count: of all entries.
        size: entries on a page.
        key: of the widget.
        selection: what is listed; another one than at the last call begins at its first page.
        bound: whether the number stands in the URL.
    """
    pages = max(1, -(-count // size))
    before = st.session_state.get(f"{key}-of", selection)
    st.session_state[f"{key}-of"] = selection
    if before != selection:
        st.session_state[key] = 1
    elif isinstance(now := st.session_state.get(key), int) and now > pages:
        st.session_state[key] = pages
    number = 1
    if pages > 1:
        number = st.pagination(pages, key=key, bind="query-params" if bound else None) or 1
    first = (min(number, pages) - 1) * size
    return slice(first, min(first + size, count))


def image_address(split: str, index: int, run: str | None = None) -> str:
    """Return the address of an image's own page, relative to the other pages.

    ``run``: the label of the run to show it for; None: the selected one.
    """
    return "image?" + _query(run or st.session_state.get("run"), split=split, index=index)


def live_address(run: str) -> str:
    """Return the address of the live page of the run with this label, relative to the other pages."""
    return "live?" + _query(run)


def _query(run: str | None, **more: object) -> str:
    known = {"run": run, "folder": st.query_params.get("folder")}
    return urlencode({name: str(value) for name, value in known.items() if value} | more)
