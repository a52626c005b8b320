"""Addresses of the dashboard's pages."""

from urllib.parse import urlencode

import streamlit as st

__all__ = ["image_address", "live_address"]


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
