"""The pages of the dashboard. Each has its own module in app/views, imported when the page is drawn."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import streamlit as st

__all__ = ["PAGES", "page"]

PAGES = (  # the module in app.views, title, icon, and path of the address
    ("runs", "Runs", "list", ""),
    ("start", "Start", "add_circle", "start"),
    ("live", "Live", "monitoring", "live"),
    ("layers", "Layers", "layers", "layers"),
    ("predictions", "Predictions", "grid_view", "predictions"),
    ("image", "Image", "image_search", "image"),
    ("data", "Data", "photo_library", "data"),
    ("image_map", "Map", "scatter_plot", "map"),
    ("compare", "Compare", "stacked_line_chart", "compare"),
    ("configuration", "Configuration", "tune", "configuration"),
)


def page(name: str, **settings: Any) -> Any:
    """Return a page for Streamlit's navigation, or as the target of a link.

    Args:
        name: of the module in ``app.views``; it is also the path of the address unless ``settings`` say so.
        settings: of ``st.Page``.
    """
    return st.Page(_drawn_by(name), **({"url_path": name} | settings))


def _drawn_by(name: str) -> Callable[[], None]:
    """Return what draws a page. All modules together would take a second to import."""

    def draw() -> None:
        import_module(f"app.views.{name}").page()

    return draw
