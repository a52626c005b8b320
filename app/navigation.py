"""The navigation of the dashboard, which main.py serves."""

import gc
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Timer

import streamlit as st

from app import address, alerts, gate, state, views
from app.markup import component

SENT_AFTER = 1.0  # seconds
STYLES = [Path(__file__).parent / name for name in ("style.css", "images/assets/cards.css")]
ASSETS = Path(__file__).parent / "views" / "assets"


@st.cache_resource(show_spinner=False)
def _import_the_rest() -> None:
    """Import the modules of all pages in a thread, so that the first click on one isn't slow, either.

    The first page is sent to the browser before. What is loaded by then, mostly code, is left out of later
    garbage collections: Streamlit collects after each run of a script or of a fragment that looks for news.
    """

    def load() -> None:
        for module in iter_modules(views.__path__, f"{views.__name__}."):
            import_module(module.name)
        import_module("app.images.batch")  # which Live needs for the batch of a step alone
        gc.collect()
        gc.freeze()

    later = Timer(SENT_AFTER, load)
    later.daemon = True
    later.start()


def sidebar() -> None:
    """Draw what stands beside each page."""
    with st.sidebar:
        state.choose_run()
        alerts.draw()
        # The browser keeps the choice; the page is loaded again, with what its address says.
        component(ASSETS / "theme.js")(key="theme", height="content")
        component(ASSETS / "history.js")(key="history", height=1)
        if gate.is_locked():
            st.link_button("Give the token", gate.TOKEN_PATH.lstrip("/"), icon=":material/lock_open:")


def main() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="labkit", page_icon="🧪", layout="wide")
    for style in STYLES:
        st.html(style)
    state.refuse_open_server()
    address.begin()
    chosen = st.navigation(
        [
            *(
                address.page(name, title=title, icon=f":material/{icon}:", url_path=path, default=not path)
                for name, title, icon, path in address.PAGES
            ),
            # Streamlit serves the default page only at the root. This one answers /runs.
            address.page("runs", title="Runs", visibility="hidden"),
        ]
    )
    sidebar()
    chosen.run()
    _import_the_rest()


if __name__ == "__main__":  # as Streamlit runs it
    main()
