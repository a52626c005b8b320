"""Plotly figures that take new points in place.

``st.plotly_chart`` builds a chart anew whenever its figure changes: once a second, a reader's zoom would be
lost and the page would flicker. A frame keeps its chart and hands the new figure to ``Plotly.react``.
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

# The host element outlives the calls: one comes with each new figure, the returned function with the last.
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
    """Bring Plotly's code to the page. Call it outside of fragments: it is 5 MB, sent once to a browser."""
    code = get_plotlyjs() + "\nexport default function () {}\n"
    st.components.v2.component("labkit_plotly", js=code)(key="plotly-code", height=1)


def draw(figure: go.Figure, *, key: str, label: str) -> None:
    """Show ``figure``, or bring the one that was drawn under ``key`` up to date. ``label`` is read aloud."""
    frame = st.components.v2.component("labkit_frame", css=CSS, js=JS, isolate_styles=False)
    frame(key=key, data={"figure": figure.to_json(validate=False), "label": label}, height="content")
