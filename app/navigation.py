"""The navigation of the dashboard, which main.py serves. Each page has its own module."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import streamlit as st

from app import state, theme

STYLE = Path(__file__).with_name("style.css")

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


def _drawn_by(name: str) -> Callable[[], None]:
    """Return what draws a page. The server is importing its module, so the others aren't waited for."""

    def draw() -> None:
        import_module(f"app.views.{name}").page()

    return draw


def main() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="labkit", page_icon="🧪", layout="wide")
    st.html(STYLE)
    state.refuse_open_server()
    page = st.navigation(
        [
            *(
                st.Page(
                    _drawn_by(name), title=title, icon=f":material/{icon}:", url_path=path, default=not path
                )
                for name, title, icon, path in PAGES
            ),
            # Streamlit serves the default page only at the root. This one answers /runs.
            st.Page(_drawn_by("runs"), title="Runs", url_path="runs", visibility="hidden"),
        ]
    )
    with st.sidebar:
        state.choose_run()
        theme.switch()
    page.run()


main()
