"""The page of a long list: one policy for every grid."""

from collections.abc import Hashable

import streamlit as st

__all__ = ["page_of"]


def page_of(count: int, size: int, key: str, selection: Hashable = None, *, bound: bool = False) -> slice:
    """Return the places of the chosen page; where there are several, draw their numbers here.

    Called within a container that was made below the grid, the numbers stand below it.

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
