"""Which of two configurations is better: the difference, how sure it is, and what it rests on."""

import html
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import streamlit as st

from app import state
from app.comparing.images import same_images
from app.comparing.plots import estimate
from app.comparing.table import best_first
from app.markup import draw_for_widths
from labkit.analysis.results import (
    MEASURES,
    Group,
    Result,
    known_measures,
    runs_for_images,
    title_of,
    told_apart,
)
from labkit.analysis.versus import (
    OnImages,
    chance_sentence,
    images_that_count,
    left_out_sentence,
    versus,
)


class Pair(NamedTuple):
    """The chosen configurations and, of each, the run whose predictions are compared."""

    first: Group
    second: Group
    runs: tuple[Result, Result]


def choose_pair(groups: Sequence[Group]) -> tuple[Pair, str] | None:
    """Draw the choice of A, B and the measure. Returns them; None where there is nothing to choose from."""
    measures = [name for name in known_measures(groups) if MEASURES[name].better]
    if len(groups) < 2 or not measures:
        return None
    # Runs of other programs may have no test: what most configurations have stands first.
    measures.sort(
        key=lambda name: (told_apart(groups, name), -sum(bool(group.values(name)) for group in groups))
    )
    names = [state.clean(group.name) for group in groups]
    titles = {title_of(name, groups): name for name in measures}
    columns = st.columns([3, 3, 2])
    best = best_first(groups, measures[0])[:2]
    better = [name for name, group in zip(names, groups, strict=True) if group in best]
    _choose_first([*better, *names] if len(best) > 1 else names)
    first = columns[0].selectbox("A", names, key="a", bind="query-params")
    second = columns[1].selectbox("B", names, key="b", bind="query-params")
    by = columns[2].selectbox("By", list(titles), key="by", bind="query-params")
    chosen = groups[names.index(first)], groups[names.index(second)]
    runs = _runs(chosen) if first != second else (chosen[0].results[0], chosen[1].results[0])
    return Pair(*chosen, runs), titles[by]


def _choose_first(names: list[str]) -> None:
    """Choose A and B where nobody has, or where the choice is gone, such as after a switch to single runs."""
    now = {key: st.session_state.get(key, st.query_params.get(key)) for key in ("a", "b")}
    for key, other in (("a", "b"), ("b", "a")):
        if now[key] not in names:
            now[key] = next(name for name in names if name != now[other])
            st.session_state[key] = now[key]


def _runs(pair: tuple[Group, Group]) -> tuple[Result, Result]:
    """Return the two runs to look at on images; where a configuration has several, they can be chosen."""
    suggested = runs_for_images(*pair)
    if all(len(group.counted) == 1 for group in pair):
        return suggested
    with st.popover("Runs for test images", icon=":material/grid_view:"):
        found = [
            _run(name, group, default) for name, group, default in zip("AB", pair, suggested, strict=True)
        ]
    return found[0], found[1]


def _run(name: str, group: Group, default: Result) -> Result:
    labels = [result.label for result in group.counted]
    if len(labels) == 1:
        return group.counted[0]
    chosen = st.selectbox(
        f"Run of {name}",
        labels,
        index=labels.index(default.label),
        key=f"run-{name}-{'/'.join(labels)}",
        width=320,
        help="McNemar's test and the galleries compare the predictions of one run of each.",
    )
    return group.counted[labels.index(chosen)]


def show_verdict(pair: Pair, measure: str, candidates: int) -> OnImages | None:
    """Draw the answer. Returns both runs on the same test images; None where they can't be compared there."""
    if pair.first is pair.second:
        st.info("A and B are the same. Choose two different ones.")
        return None
    images, why_not = same_images(*(result.run for result in pair.runs))
    counting, differ = images_that_count((pair.first, pair.second), pair.runs, images)
    answer = versus(pair.first, pair.second, measure, counting, candidates=candidates)
    st.html(f'<p class="lk-verdict" role="status">{html.escape(answer.headline)}</p>')
    draw_for_widths(partial(estimate, pair.first, pair.second, measure, answer), key="estimate")
    left_out = left_out_sentence(images) if images is not None else ""
    said = (*answer.notes, state.clean(differ), left_out)
    notes = [f"<li>{html.escape(note)}</li>" for note in said if note]
    if images is None:
        notes.append(f"<li>{html.escape(f'Not compared on single test images: {why_not}.')}</li>")
    else:
        notes.append(f"<li>{html.escape(state.clean(chance_sentence(images, pair.runs)))}</li>")
    st.html(f'<ul class="lk-notes">{"".join(notes)}</ul>')
    return images
