"""The navigation of the dashboard, which main.py serves. Each page has its own module."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Thread

import streamlit as st

from app import address, state, theme, views

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
    """Return what draws a page. Its module is imported when it is needed: all together take a second."""

    def draw() -> None:
        import_module(f"app.views.{name}").page()

    return draw


@st.cache_resource(show_spinner=False)
def _import_the_rest() -> None:
    """Import the modules of all pages in a thread, so that the first click on one isn't slow, either."""
    names = [module.name for module in iter_modules(views.__path__, f"{views.__name__}.")]
    Thread(target=lambda: [import_module(name) for name in names], daemon=True).start()


def main() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="labkit", page_icon="🧪", layout="wide")
    st.html(STYLE)
    state.refuse_open_server()
    address.begin()
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
    _import_the_rest()


main()
