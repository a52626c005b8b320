"""SVG on a page. ``st.html`` drops it, and a picture would know neither the theme nor the pointer."""

import streamlit as st

__all__ = ["WIDTHS", "draw_svg"]

WIDTHS = (680, 340)  # pixels

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
.lk-narrow { display: none; }
@media (max-width: 640px) { .lk-wide { display: none; } .lk-narrow { display: block; } }
.lk-svg circle:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
"""


def draw_svg(key: str, wide: str, narrow: str) -> None:
    """Draw an SVG, or replace the one drawn under ``key``. All texts in it must be escaped.

    Args:
        key: of the component.
        wide: for a laptop, made for the first of ``WIDTHS``.
        narrow: the same for a phone, where its texts keep their size.
    """
    svg = f'<div class="lk-wide">{wide}</div><div class="lk-narrow">{narrow}</div>'
    frame = st.components.v2.component("labkit_svg", css=CSS, js=CALL, isolate_styles=False)
    frame(key=key, data={"svg": svg}, height="content")
