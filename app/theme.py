"""The choice between the light theme, the dark one, and that of the system."""

import streamlit as st

__all__ = ["switch"]

# Streamlit keeps the theme in the browser's storage, for each address that a page was loaded from, and reads
# it when it starts. The script writes it for every page of the dashboard and loads the page again.
SCRIPT = """
export default function ({ parentElement }) {
  const VERSION = 2; // of what Streamlit keeps
  const links = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')];
  const addresses = [location.pathname, ...links.map((link) => new URL(link.href).pathname)];
  const key = (address) => `stActiveTheme-${address}-v${VERSION}`;
  const kept = () => {
    for (const address of addresses)
      try {
        const theme = JSON.parse(localStorage.getItem(key(address)));
        if (theme) return theme;
      } catch { /* none is kept */ }
    return 'System';
  };
  const radios = [...parentElement.querySelectorAll('input')];
  const mark = () => radios.forEach((radio) => { radio.checked = radio.value === kept(); });
  mark();
  const choose = (event) => {
    const theme = JSON.stringify(event.target.value);
    try {
      addresses.forEach((address) => localStorage.setItem(key(address), theme));
    } catch { // a browser that keeps nothing
      mark();
      return;
    }
    const url = new URL(location);
    const options = url.searchParams.getAll('embed_options');
    url.searchParams.delete('embed_options'); // its theme would go before the one that was chosen
    options.filter((one) => !/^(light|dark)_theme$/.test(one)).forEach((one) =>
      url.searchParams.append('embed_options', one));
    history.replaceState(history.state, '', url);
    location.reload();
  };
  radios.forEach((radio) => radio.addEventListener('change', choose));
  return () => radios.forEach((radio) => radio.removeEventListener('change', choose));
}
"""

MARKUP = """<fieldset class="lk-theme"><legend>Theme</legend>
<label><input type="radio" name="lk-theme" value="Light"><span>Light</span></label>
<label><input type="radio" name="lk-theme" value="Dark"><span>Dark</span></label>
<label><input type="radio" name="lk-theme" value="System"><span>System</span></label>
</fieldset>"""

STYLE = """
.lk-theme { border: 0; margin: 0; padding: 0; display: flex; align-items: center; font-size: 13px;
  color: var(--st-text-color); font-family: var(--st-font); }
.lk-theme legend { float: left; padding: 0; margin: 0 10px 0 0; }
.lk-theme label { position: relative; flex: 1; }
.lk-theme input { position: absolute; inset: 0; opacity: 0; margin: 0; cursor: pointer; }
.lk-theme span { display: block; padding: 4px 6px; text-align: center; margin-left: -1px;
  border: 1px solid var(--st-border-color); }
.lk-theme label:first-of-type span { border-radius: 6px 0 0 6px; }
.lk-theme label:last-of-type span { border-radius: 0 6px 6px 0; }
.lk-theme input:checked + span { background: var(--st-primary-color); color: var(--st-background-color);
  border-color: var(--st-primary-color); }
.lk-theme input:focus-visible + span { outline: 2px solid var(--st-text-color); outline-offset: 2px; }
"""


def switch() -> None:
    """Draw the choice. The browser keeps it; the page is loaded again, with what its address says."""
    frame = st.components.v2.component(
        "labkit_theme", html=MARKUP, js=SCRIPT, css=STYLE, isolate_styles=False
    )
    frame(key="theme", height="content")
