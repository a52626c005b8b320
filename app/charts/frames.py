"""Plotly charts that are updated in place.

``st.plotly_chart`` rebuilds the chart whenever its figure changes. On a page that is refreshed every second
it would flicker and lose the user's zoom. The component here keeps its chart and passes new figures to
``Plotly.react``.
"""

import plotly.graph_objects as go
import streamlit as st
from plotly.offline import get_plotlyjs

__all__ = ["draw", "prepare"]

CSS = """
.lk-frame { width: 100%; }
.lk-frame .main-svg text { fill: var(--st-text-color) !important; font-family: var(--st-font) !important; }
.lk-frame .xtick text, .lk-frame .ytick text, .lk-frame .annotation text { opacity: 0.75; }
.lk-frame .gridlayer path, .lk-frame .zerolinelayer path {
  stroke: var(--st-border-color) !important; stroke-opacity: 0.7 !important; }
.lk-frame .hoverlayer .bg, .lk-frame .hoverlayer path, .lk-frame .hoverlayer rect {
  fill: var(--st-secondary-background-color) !important; stroke: var(--st-border-color) !important; }
.lk-frame .modebar-btn .icon path { fill: var(--st-text-color) !important; }
.lk-frame .modebar-group, .lk-frame .modebar { background: transparent !important; }
"""

# The function is called for each new figure and reuses the host element. The returned function cleans up.
JS = """
export default function ({ data, parentElement }) {
  let host = parentElement.querySelector('.lk-frame');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-frame';
    parentElement.appendChild(host);
  }
  host.setAttribute('role', 'figure');
  host.setAttribute('aria-label', data.label);
  host.latest = data.figure;
  const draw = () => {
    if (!globalThis.Plotly) { host.waiting = setTimeout(draw, 50); return; }
    if (host.latest !== data.figure) return;
    const figure = JSON.parse(data.figure);
    const config = { displaylogo: false, responsive: true, showSendToCloud: false,
                     modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d'] };
    host.style.height = figure.layout.height + 'px';
    globalThis.Plotly.react(host, figure.data, figure.layout, config);
  };
  draw();
  return () => {
    clearTimeout(host.waiting);
    if (!host.isConnected && globalThis.Plotly) globalThis.Plotly.purge(host);
  };
}
"""


def prepare() -> None:
    """Load Plotly's code (5 MB, sent once to a browser) into the page. Call it outside of fragments."""
    code = get_plotlyjs() + "\nexport default function () {}\n"
    st.components.v2.component("labkit_plotly", js=code)(key="plotly-code", height=1)


def draw(figure: go.Figure, *, key: str, label: str) -> None:
    """Draw ``figure``, or update the one drawn under ``key``. ``label`` is for screen readers."""
    frame = st.components.v2.component("labkit_frame", css=CSS, js=JS, isolate_styles=False)
    frame(key=key, data={"figure": figure.to_json(validate=False), "label": label}, height="content")
