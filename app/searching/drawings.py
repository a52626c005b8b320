"""What the Search page draws: results over time, importance, slices, parallel coordinates."""

import html
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import streamlit as st

from app import background, state
from app.charts import component
from app.charts.board import PALETTE, Chart, Line, encode
from app.charts.metric_charts import look_of
from app.comparing.plots import Axis, Dot, axis_of, scatter
from app.comparing.relations import parallel
from app.markup import WIDTHS, draw_for_widths
from app.searching.study import Importance, Study, Trial, importance

MAX_RUNGS = len(PALETTE) - 1  # with a colour each; further ones share the last


def title_of(study: Study) -> str:
    """Return the name of what is searched for, such as ``Validation accuracy``."""
    title = look_of(study.request.objective).title
    return f"Validation {title[0].lower()}{title[1:]}"


def is_percent(study: Study) -> bool:
    return look_of(study.request.objective).unit == "percent"


def value_shown(study: Study, value: float | None) -> str:
    """Return a value of the objective as text; – where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f} %" if is_percent(study) else f"{value:.4g}"


def color_of_rung(study: Study, step: int) -> str:
    place = study.request.rungs.index(step) if step in study.request.rungs else 0
    return PALETTE[1 + min(place, MAX_RUNGS - 1)]


def show_progress(study: Study) -> None:
    """Draw the best value so far, and each result at its rung, over the seconds of searching."""
    times: list[float] = []
    bests: list[float] = []
    for at, value in study.improvements():
        if bests:  # a step, not a slope
            times.append(np.nextafter(at, -math.inf))
            bests.append(bests[-1])
        times.append(at)
        bests.append(value)
    if not bests:
        st.info("No trial has a result yet.")
        return
    times.append(max(study.progress.seconds, times[-1]))
    bests.append(bests[-1])
    lines = [Line("best so far", np.array(times), np.array(bests), PALETTE[0])]
    for step in study.request.rungs:
        found = [result for _, result in study.results if result.step == step]
        where = np.array([result.at for result in found])
        values = np.array([result.value for result in found], np.float64)
        lines.append(Line(f"at step {step:,}", where, values, color_of_rung(study, step), style="dots"))
    chart = Chart("found", title_of(study), lines, unit="percent" if is_percent(study) else "")
    board = encode([chart], axis="seconds", x_title="Searching", name=state.clean(study.folder.name))
    component.draw(board, key=component.key_of("search", study.folder))


def show_importance(study: Study) -> None:
    """Draw the share of each setting in the differences of the results."""
    # Not again for each result: it takes a second of the machine that may be searching.
    growth = int(math.log(max(len(study.results), 1)) / math.log(1.1))
    job = background.start((study.folder, growth), background.Job[Importance](), lambda _: importance(study))
    found = background.shown(job, "Computing the importance of each setting", "importance")
    if found is None:
        return
    shares, step, trials = found
    bars = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{share:.0%}</td><td style="width:60%">'
        f'<div class="lk-bar-of" style="width:{100 * share:.1f}%;background:{PALETTE[0]}"></div></td></tr>'
        for name, share in shares
    )
    st.html(f'<table class="lk-balance">{bars}</table>')
    st.caption(
        f"How much of the differences between {trials:,} results at step {step:,} each setting explains "
        "(fANOVA). It says nothing of values that weren't tried."
    )


def axes_of(study: Study, trials: Sequence[Trial]) -> dict[str, Axis]:
    """Return the axes of some trials with results: each setting, the steps, and the result, by title."""
    found = {
        name: axis_of(name, [trial.values.get(name) for trial in trials], few=True)
        for name in study.request.space
    }
    lasts = [trial.last for trial in trials]
    scale = 100 if is_percent(study) else 1
    values = [None if last is None or last.value is None else scale * last.value for last in lasts]
    found["Steps"] = axis_of("Steps", [last and last.step for last in lasts], few=True)
    found[title_of(study)] = axis_of(title_of(study), values, "%" if is_percent(study) else "")
    return found


def show_slices(study: Study) -> None:
    """Draw the results over the values of one setting, coloured by rung; and parallel coordinates."""
    trials = [trial for trial in study.ranked if trial.last is not None]
    if not trials:
        return
    found, result = axes_of(study, trials), title_of(study)
    box = st.expander("Slices", key="search-slices", on_change="rerun", icon=":material/scatter_plot:")
    if box.open:
        with box:
            names = list(study.request.space)
            across = st.selectbox("Setting", names, key="slice", bind="query-params", width=320)
            dots = [
                Dot(
                    f"trial {trial.number}, step {trial.last.step:,}",
                    found[across].values[place],
                    found[result].values[place],
                    color_of_rung(study, trial.last.step),
                )
                for place, trial in enumerate(trials)
                if trial.last is not None and found[across].values[place] is not None
            ]
            if dots:
                draw = partial(scatter, dots, found[across], found[result], what="trials")
                draw_for_widths(*(draw(width=width) for width in WIDTHS), key="search-scatter")
                st.caption(
                    "The last result of each trial, in the colour of its rung in the chart above. Trials "
                    "that were pruned have trained for fewer steps."
                )
    opened = st.expander(
        "Parallel coordinates",
        key="search-parallel",
        on_change="rerun",
        icon=":material/stacked_line_chart:",
    )
    if opened.open:
        with opened:
            parallel([*study.request.space, "Steps", result], found, what="trials")
