"""SVG on a page. ``st.html`` takes it out, and a picture would know neither the theme nor the pointer."""

import streamlit as st

__all__ = ["WIDTHS", "draw", "draw_for_widths"]

WIDTHS = (680, 340)  # pixels: of a laptop's page, of a phone's

CSS = """
.lk-drawing { color: var(--st-text-color); font-family: var(--st-font), system-ui, sans-serif;
  font-size: 12px; }
.lk-drawing .lk-svg { width: 100%; height: auto; display: block; overflow: visible; }
.lk-drawing text { fill: currentColor; }
.lk-drawing summary { cursor: pointer; padding: 4px 0; }
.lk-drawing summary:focus-visible { outline: 2px solid var(--st-primary-color); }
.lk-drawing table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.lk-drawing th, .lk-drawing td { text-align: right; padding: 1px 10px 1px 0; font-weight: 400; }
.lk-drawing circle:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
.lk-narrow { display: none; }
@media (max-width: 640px) { .lk-wide { display: none; } .lk-narrow { display: block; } }
.lk-curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: 10px 14px;
  margin: 0 !important; padding: 0 !important; list-style: none; max-height: 470px; overflow: auto; }
.lk-curves:focus-visible { outline: 2px solid var(--st-primary-color); }
.lk-curves li { margin: 0 !important; padding: 0 !important; min-width: 0; }
.lk-curves div { font-size: 12px; display: flex; justify-content: space-between; gap: 6px; }
.lk-curves div span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.lk-curves div span + span { flex: none; font-variant-numeric: tabular-nums; font-weight: 600; }
"""

JS = """
export default function ({ data, parentElement }) {
  let host = parentElement.querySelector('.lk-drawing');
  if (!host) {
    host = document.createElement('div');
    host.className = 'lk-drawing';
    parentElement.appendChild(host);
  }
  if (host.markup !== data.markup) host.innerHTML = host.markup = data.markup;
}
"""


def draw(markup: str, *, key: str) -> None:
    """Draw HTML with SVG, or replace what is drawn under ``key``. All texts in ``markup`` must be escaped."""
    frame = st.components.v2.component("labkit_drawing", css=CSS, js=JS, isolate_styles=False)
    frame(key=key, data={"markup": markup}, height="content")


def draw_for_widths(wide: str, narrow: str, *, key: str) -> None:
    """Draw one of two SVGs, made for the widths of ``WIDTHS``, so that texts keep their size."""
    draw(f'<div class="lk-wide">{wide}</div><div class="lk-narrow">{narrow}</div>', key=key)
