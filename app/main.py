"""The entry of the dashboard, `streamlit run app/main.py`: its navigation. Each page has its own module."""

import sys
from pathlib import Path

import streamlit as st

# Streamlit adds this file's folder to the path, but not the checkout that holds the packages.
CHECKOUT = str(Path(__file__).resolve().parents[1])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)

from app import state  # noqa: E402
from app.views import compare, configuration, image, layers, live, predictions, runs, start  # noqa: E402

# Less room above the page, so that charts are above the fold of a laptop; facts in a row that wraps.
STYLE = """<style>
.stMainBlockContainer { padding-top: 2.6rem; padding-bottom: 3rem; }
.stMainBlockContainer .stVerticalBlock { gap: 0.7rem; }
.lk-facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); gap: 6px 12px;
  margin: 0 !important; padding: 0 !important; }
.lk-facts dt { font-size: 12.5px; opacity: .8; }
.lk-facts dd { margin: 0; font-size: 1.25rem; white-space: nowrap; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
button[data-testid="stBaseButton-primary"]:enabled { color: light-dark(#fff, #0b1a33); }
</style>"""


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
    page.run()


main()
