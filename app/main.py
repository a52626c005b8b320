"""The entry of the dashboard, `streamlit run app/main.py`: its navigation. Each page has its own module."""

import sys
from pathlib import Path

import streamlit as st

# Streamlit adds this file's folder to the path, but not the checkout that holds the packages.
CHECKOUT = str(Path(__file__).resolve().parents[1])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)

from app import state, theme  # noqa: E402
from app.views import (  # noqa: E402
    compare,
    configuration,
    data,
    image,
    image_map,
    layers,
    live,
    predictions,
    runs,
    start,
)

STYLE = Path(__file__).with_name("style.css")


def main() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="labkit", page_icon="🧪", layout="wide")
    st.html(STYLE)
    state.refuse_open_server()
    page = st.navigation(
        [
            st.Page(runs.page, title="Runs", icon=":material/list:", url_path="", default=True),
            st.Page(start.page, title="Start", icon=":material/add_circle:", url_path="start"),
            st.Page(live.page, title="Live", icon=":material/monitoring:", url_path="live"),
            st.Page(layers.page, title="Layers", icon=":material/layers:", url_path="layers"),
            st.Page(
                predictions.page, title="Predictions", icon=":material/grid_view:", url_path="predictions"
            ),
            st.Page(image.page, title="Image", icon=":material/image_search:", url_path="image"),
            st.Page(data.page, title="Data", icon=":material/photo_library:", url_path="data"),
            st.Page(image_map.page, title="Map", icon=":material/scatter_plot:", url_path="map"),
            st.Page(compare.page, title="Compare", icon=":material/stacked_line_chart:", url_path="compare"),
            st.Page(
                configuration.page, title="Configuration", icon=":material/tune:", url_path="configuration"
            ),
            # Streamlit serves the default page only at the root. This one answers /runs.
            st.Page(runs.page, title="Runs", url_path="runs", visibility="hidden"),
        ]
    )
    with st.sidebar:
        state.choose_run()
        theme.switch()
    page.run()


main()
