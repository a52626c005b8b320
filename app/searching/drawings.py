"""What the Search page draws: results over time, importance, slices, parallel coordinates."""

import math
import time
from functools import partial

import numpy as np
import streamlit as st

from app import background, state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
from app.charts.metric_charts import look_of
from app.comparing.plots import axis_of
from app.comparing.relations import draw_parallel, draw_scatter
from app.markup import Bar, number_text, table_html, unfolding
from labkit.experiments.search.files import REQUEST
from labkit.experiments.search.result import Importance, SearchResult

MAX_RUNGS = len(PALETTE) - 1  # with a colour each; further ones share the last

# Until the browser has what it shows first, from this process, which Optuna's import keeps busy for seconds.
PAGE_SECONDS = 2.0


def title_of(search: SearchResult) -> str:
    """Return the name of what is searched for, such as ``Validation accuracy``."""
    title = look_of(search.request.objective).title
    return f"Validation {title[0].lower()}{title[1:]}"


def is_percent(search: SearchResult) -> bool:
    return look_of(search.request.objective).unit == "percent"


def value_shown(search: SearchResult, value: float) -> str:
    """Return a value of the objective as text."""
    return number_text(value, ".2%" if is_percent(search) else ".4g")


def color_of_rung(rung: int) -> str:
    return PALETTE[1 + min(rung, MAX_RUNGS - 1)]


def show_progress(search: SearchResult) -> None:
    """Draw the best value so far, and each result at its rung, over the seconds of searching."""
    better = search.improvements()
    if not better:
        st.info("No trial has a result yet.")
        return
    end = max(search.progress.seconds, better[-1].at)
    times = np.repeat([*(result.at for result in better), end], 2)[1:-1]
    times[1::2] = np.nextafter(times[1::2], -math.inf)  # a step, not a slope
    bests = np.repeat([result.value for result in better], 2)
    lines = [Line("best so far", times, bests, PALETTE[0])]
    for rung, place in enumerate(search.request.places):
        found = [result for _, result in search.at_rung(rung)]
        where = np.array([result.at for result in found])
        values = np.array([result.value for result in found])
        lines.append(Line(place, where, values, color_of_rung(rung), style="dots"))
    chart = Chart("found", title_of(search), lines, unit="percent" if is_percent(search) else "")
    board = encode([chart], axis="seconds", x_title="Searching", name=state.clean(search.folder.name))
    component.draw(board, key=component.key_of("search", search.folder))


def show_importance(search: SearchResult) -> None:
    """Draw the share of each setting in the differences of the results."""

    def compute(_: object) -> Importance:
        time.sleep(PAGE_SECONDS)
        return search.importance()

    # Not again for each result: it takes seconds of the machine that may be searching.
    growth = int(math.log(max(len(search.results), 1)) / math.log(1.1))
    started = state.changed_at(search.folder / REQUEST)
    job = background.start((search.folder, started, growth), background.Job[Importance](), compute)
    found = background.shown(job, "Computing the importance of each setting", "importance")
    if found is None:
        return
    shares, place, trials = found
    bars = ((name, Bar(number_text(share, ".0%"), share, PALETTE[0])) for name, share in shares)
    st.html(table_html(("Setting", "Importance"), bars))
    st.caption(
        f"How much of the differences between {trials:,} results {place} each setting explains "
        "(fANOVA). It says nothing of values that weren't tried."
    )


def show_slices(search: SearchResult) -> None:
    """Draw the results over the values of one setting, coloured by rung; and parallel coordinates."""
    trials = [trial for trial in search.trials if trial.results]
    if not trials:
        return
    found = {
        name: axis_of(name, [trial.values.get(name) for trial in trials], few=True)
        for name in search.request.space
    }
    lasts, result, percent = [trial.results[-1] for trial in trials], title_of(search), is_percent(search)
    found["Steps"] = axis_of("Steps", [last.step for last in lasts], few=True)
    values = [(100 if percent else 1) * last.value for last in lasts]
    found[result] = axis_of(result, values, "%" if percent else "")

    def slices() -> None:
        names = list(search.request.space)
        across = st.selectbox("Setting", names, key="slice", bind="query-params", width=320)
        labels = [f"trial {trial.number}, step {trial.results[-1].step:,}" for trial in trials]
        colors = [color_of_rung(len(trial.results) - 1) for trial in trials]
        draw_scatter(labels, colors, found[across], found[result], key="search-scatter", what="trials")
        st.caption(
            "The last result of each trial, in the colour of its rung in the chart above. Trials that were "
            "pruned have trained for fewer steps."
        )

    unfolding("Slices", slices, key="search-slices", icon="scatter_plot")
    names = [*search.request.space, "Steps", result]
    parallel = partial(draw_parallel, names, found, "trials")
    unfolding("Parallel coordinates", parallel, key="search-parallel", icon="stacked_line_chart")
