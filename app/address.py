"""What the address of a page keeps beside the widgets, so that links, Back and Forward show it again."""

import time
from dataclasses import dataclass

import streamlit as st

__all__ = ["begin", "follow", "show"]

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
