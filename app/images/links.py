"""Addresses of the dashboard's pages."""

from urllib.parse import urlencode

import streamlit as st

__all__ = ["image_address"]


def image_address(split: str, index: int, run: str | None = None) -> str:
    """Return the address of an image's own page, relative to the other pages.

    ``run``: the label of the run to show it for; None: the selected one.
    """
    values = {"run": run or st.session_state.get("run"), "folder": st.query_params.get("folder")}
    known = {name: str(value) for name, value in values.items() if value}
    return "image?" + urlencode({**known, "split": split, "index": index})
