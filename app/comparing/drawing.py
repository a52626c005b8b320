"""SVG on a page. ``st.html`` drops it, and a picture would know neither the theme nor the pointer."""

import streamlit as st

__all__ = ["draw_svg"]

# What is drawn was made in Python, where every text in it was escaped.
CALL = """
export default function ({ data, parentElement }) {
  let host = parentElement.querySelector('.lk-svg');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-svg';
    parentElement.appendChild(host);
  }
  if (host.drawn !== data.svg) { host.drawn = data.svg; host.innerHTML = data.svg; }
}
"""
CSS = """
.lk-svg { color: var(--st-text-color); font-family: var(--st-font), system-ui, sans-serif; }
.lk-svg circle:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""


def draw_svg(svg: str, key: str) -> None:
    """Draw an SVG whose texts are escaped, or replace the one drawn under ``key``."""
    frame = st.components.v2.component("labkit_svg", css=CSS, js=CALL, isolate_styles=False)
    frame(key=key, data={"svg": svg}, height="content")
