"""Addresses of the dashboard's pages."""

from urllib.parse import urlencode

import streamlit as st

__all__ = ["image_address"]


def image_address(split: str, index: int) -> str:
    """Return the address of an image's own page for the selected run, relative to the other pages."""
    values = {"run": st.session_state.get("run"), "folder": st.query_params.get("folder")}
    known = {name: str(value) for name, value in values.items() if value}
    return "image?" + urlencode({**known, "split": split, "index": index})
