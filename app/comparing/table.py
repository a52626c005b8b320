"""The table of results: a row for each configuration or run."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from app.state import clean
from labkit.analysis.run_results.groups import NO_VALUE, Group, known_measures, spread_text, title_of
from labkit.analysis.run_results.results import MEASURES, differing, value_text

__all__ = ["frame", "show_table"]

BEST = "background-color: rgba(26, 158, 119, 0.25)"
KEY = "compare-table"
MAX_ROWS_SHOWN = 12  # without scrolling
HEIGHT = 440  # pixels of a longer table


def show_table(groups: Sequence[Group]) -> list[Group]:
    """Draw the results of the configurations. Returns those whose rows are ticked."""
    styled, numbers = frame(groups)
    several = any(len(group.results) > 1 for group in groups)
    event: Any = st.dataframe(
        styled,
        key=KEY,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        placeholder=NO_VALUE,
        height="content" if len(groups) <= MAX_ROWS_SHOWN else HEIGHT,
        column_config={
            "Configuration": st.column_config.TextColumn(pinned=True, width="medium"),
            "State": st.column_config.TextColumn(width=100),
            "Seed": st.column_config.TextColumn(width=80),
            **{title: st.column_config.NumberColumn(width=160 if several else 120) for title in numbers},
        },
        alt="Results and differing settings of each configuration",
    )
    st.caption(
        ("Mean ± standard deviation over the finished runs (their number). " if several else "")
        + ("The best of each column is tinted. " if len(groups) > 1 else "")
        + "Settings that are the same for all, and places such as directories, aren't listed. "
        + "Tick rows to make their curves stand out."
    )
    return [groups[row] for row in event.selection.rows if row < len(groups)]


def frame(groups: Sequence[Group]) -> tuple[Styler, list[str]]:
    """Return the table and the titles of its columns of numbers.

    A cell is sorted by its mean, and reads ``81.20 ± 0.35 % (3)``.
    """
    settings = differing([result for group in groups for result in group.results])
    firsts = [sum(len(group.results) for group in groups[:place]) for place in range(len(groups))]
    columns: dict[str, list[Any]] = {
        "Configuration": [clean(group.name) for group in groups],
        "State": [group.state for group in groups],
        "Seed": [clean(group.seeds) for group in groups],
    }
    texts: dict[str, list[str]] = {}
    best: dict[str, int] = {}
    for measure in known_measures(groups):
        found = [group.spread(measure) for group in groups]
        title = title_of(measure, groups)
        scale = 100 if MEASURES[measure].unit == "percent" else 1
        columns[title] = [math.nan if one is None else scale * one.mean for one in found]
        texts[title] = [spread_text(measure, one) for one in found]
        if (sign := MEASURES[measure].better) and len(groups) > 1:
            ranked = [row for row, one in enumerate(found) if one is not None]
            best[title] = max(ranked, key=lambda row: sign * columns[title][row])
    for name, values in settings.items():
        columns[name if name not in columns else f"{name} (setting)"] = [
            clean(value_text(values[first])) for first in firsts
        ]
    data = pd.DataFrame(columns)
    styled = data.style
    for title, shown in texts.items():
        for row, text in enumerate(shown):
            styled = styled.format(lambda _, text=text: text, subset=pd.IndexSlice[[row], [title]])
    for title, row in best.items():
        styled = styled.map(lambda _: BEST, subset=pd.IndexSlice[[row], [title]])
    return styled, list(texts)
