"""The family of a run on the live page: where it was forked from, and what was forked from it."""

from html import escape

import streamlit as st

from app import state
from app.images.links import live_address
from app.images.text import visible
from app.state import clean
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.lineage import Relative, family_of

__all__ = ["show_family"]

DEEPEST = 8  # generations that are indented: a phone is narrow


def show_family(run: RunDirectory) -> None:
    """Draw the tree of the runs that share steps with ``run``; nothing if there is no other."""
    listed = state.listed_runs()
    family = family_of(run, listed.values())
    if len(family) < 2:
        return
    labels = {one.path: label for label, one in listed.items()}
    lines = [_line(relative, run, labels.get(relative.run.path)) for relative in family]
    with st.expander(f"Family of {counted(len(family), 'run')}", icon=":material/account_tree:"):
        st.html(f'<ul class="lk-family">{"".join(lines)}</ul>')


def _line(relative: Relative, shown: RunDirectory, label: str | None) -> str:
    name = escape(visible(clean(relative.run.name)))
    if relative.run.path == shown.path:
        name = f'<strong aria-current="page">{name}</strong>'
    else:
        address = live_address(label or clean(relative.run.path))
        name = f'<a href="{escape(address, quote=True)}">{name}</a>'
    origin = ""
    if relative.lineage is not None:
        changes = escape(visible(clean(relative.lineage.describe())))
        origin = f" from step {relative.lineage.step:,}" + (f": {changes}" if changes else "")
    indent = 1.5 * min(relative.depth, DEEPEST)
    return f'<li style="margin-left: {indent}rem">{name}{origin}</li>'
