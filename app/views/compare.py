"""The comparison page: the results of several runs, which of two is better, where they differ, and why."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.comparing.comparisons import show_comparisons
from app.comparing.curves import colors_of, show_curves
from app.comparing.images import show_galleries
from app.comparing.relations import show_relations
from app.comparing.table import choose_runs, results_of, show_table
from app.comparing.verdict import choose_pair, show_verdict
from app.markup import plain, show_command, unfolding
from app.report import downloads
from app.run_table.actions import follow_link
from labkit.analysis.results import Group, Result, grouped


def page() -> None:
    """Draw the comparison of the selected runs. At first, the sidebar's run is one of them."""
    follow_link()
    st.subheader("Compare runs", anchor=False)
    runs = choose_runs()
    show_comparisons(runs.values())
    if not runs:
        st.info("Choose the runs to compare. Without any, start one:")
        show_command("labkit train --preset smoke")
        return
    results = results_of(runs)
    for result in results:
        if result.summary.damage:
            said = f"{result.label}: {'; '.join(result.summary.damage)}"
            st.warning(plain(said), icon=":material/broken_image:")
    groups = _grouped(results)
    curves = st.container()  # stands first, and depends on what is ticked in the table
    ticked = show_table(groups)
    downloads.share(list(runs.values()), "compare")
    pair = _verdict(groups)
    chosen = [group.name for group in ticked] or pair
    with curves:
        show_curves(groups, chosen)
    st.markdown("#### Settings and results")
    show_relations(groups, colors_of(groups, chosen))


def _grouped(results: Sequence[Result]) -> list[Group]:
    together = grouped(results)
    if len(together) == len(results):
        return together
    single = st.toggle(
        "Single runs",
        key="single",
        bind="query-params",
        help="Otherwise runs that differ only in their seed are one configuration, with mean and spread.",
    )
    return grouped(results, seeds_together=False) if single else together


def _verdict(groups: Sequence[Group]) -> list[str]:
    """Draw which of two is better, and the images. Returns the names of both."""
    st.markdown("#### Which is better?")
    found = choose_pair(groups)
    if found is None:
        if len(groups) == 1 and len(groups[0].results) > 1:
            st.info("These runs are one configuration. *Single runs* compares them with each other.")
        else:
            st.info("No results yet." if len(groups) > 1 else "Choose a second run to compare with.")
        return []
    pair, measure = found
    images = show_verdict(pair, measure, len(groups))
    if images is not None and len(images.fixed) + len(images.broken):
        title = f"Test images: {len(images.fixed):,} fixed by B, {len(images.broken):,} broken by B"
        show = partial(show_galleries, images, pair.runs)
        unfolding(title, show, key="differing-images", icon="grid_view")
    return [pair.first.name, pair.second.name]
