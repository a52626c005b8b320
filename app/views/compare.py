"""The comparison page: curves of several runs in one chart, and the differences of their configurations."""

from typing import Any

import streamlit as st

from app import state
from app.charts import component
from app.charts.board import PALETTE, Chart, encode
from app.charts.metric_charts import axis_kind, controls, look_of, metric_lines, remember_window, window_of
from app.charts.store import SPLITS, Snapshot
from app.charts.timeline import AXES, timeline_of
from app.report import downloads
from app.views.configuration import flatten
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["differences", "page"]

MAX_RUNS = len(PALETTE)
REFRESH_SECONDS = 5.0

VALUES = {
    "Training loss": ("train", "loss"),
    "Validation loss": ("validation", "loss"),
    "Validation accuracy": ("validation", "accuracy"),
    "Training accuracy": ("train", "accuracy"),
    "Learning rate": ("train", "learning_rate"),
    "Examples per second": ("train", "examples_per_second"),
}


def page() -> None:
    """Draw the comparison of the selected runs. At first, the sidebar's run is one of them."""
    st.subheader("Compare runs", anchor=False)
    labels = state.run_labels()
    chosen_elsewhere = st.session_state.get("run")
    options = list(dict.fromkeys([*([chosen_elsewhere] if chosen_elsewhere else []), *labels]))
    chosen = st.multiselect(
        "Runs",
        options,
        default=options[: min(2, len(options))],
        key="runs",
        bind="query-params",
        max_selections=MAX_RUNS,
        placeholder=f"Choose up to {MAX_RUNS} runs",
    )
    runs = [run for run in map(state.find_run, chosen) if run.exists()]
    if not runs:
        st.info("Choose the runs to compare.")
        return
    component.prepare()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        shown = st.pills(
            "Curves",
            list(VALUES),
            selection_mode="multi",
            default=["Training loss", "Validation accuracy"],
            key="curves",
            bind="query-params",
        )
        downloads.share(runs, "compare")

    @st.fragment(run_every=REFRESH_SECONDS, key="compare")
    def panel() -> None:
        _curves(runs, shown)

    panel()
    _table(runs)


def _curves(runs: list[RunDirectory], shown: list[str]) -> None:
    snapshots = []
    for run in runs:
        try:
            snapshots.append((run, state.curves(run)))
        except OSError as error:
            st.error(f"`{run.metrics_path}` can't be read: {error.strerror}")
    more = _more_metrics([snapshot for _, snapshot in snapshots])
    options, _ = controls()
    names = unique_names([run for run, _ in snapshots])
    charts = [
        Chart(
            f"{split}-{value}",
            title,
            [
                line
                for number, (name, (_, snapshot)) in enumerate(zip(names, snapshots, strict=True))
                for line in metric_lines(
                    snapshot, split, value, name, PALETTE[number % len(PALETTE)], options, raw=False
                )
            ],
            look_of(value).unit,
            options.logarithmic and look_of(value).logarithmic,
        )
        for title, (split, value) in (
            {title: VALUES[title] for title in VALUES if title in shown} | more
        ).items()
    ]
    board = encode(
        charts,
        axis=axis_kind(options),
        x_title=AXES[options.axis][1],
        window=window_of(options, timeline_of(snapshots[0][1]) if snapshots else None),
        name="comparison",
        height=300,
    )
    component.draw(board, key="compare-board", on_window=lambda: remember_window("compare-board", options))


def _more_metrics(snapshots: list[Snapshot]) -> dict[str, tuple[str, str]]:
    """Draw the selection of all other metrics. Returns split and metric of the chosen ones by their title."""
    options = {
        f"{look_of(value).title} ({split})": (split, value)
        for split in SPLITS
        for snapshot in snapshots
        for value in snapshot.metrics([split])
        if (split, value) not in VALUES.values()
    }
    chosen = st.multiselect(
        "More curves", list(options), key="more", bind="query-params", placeholder="Choose metrics to draw"
    )
    return {title: options[title] for title in chosen}


def unique_names(runs: list[RunDirectory]) -> list[str]:
    """Return the names of the runs, or the path of each run whose name isn't unique."""
    names = [run.name for run in runs]
    return [str(run.path) if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)]


def differences(configurations: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each setting that differs between the runs, with the text of each run by its name."""
    flat = {name: dict(flatten(configuration)) for name, configuration in configurations.items()}
    settings = dict.fromkeys(setting for values in flat.values() for setting in values)
    rows = []
    for setting in settings:
        values = {name: values.get(setting, "–") for name, values in flat.items()}
        if len(set(values.values())) > 1:
            rows.append({"setting": setting, **values})
    return rows


def _table(runs: list[RunDirectory]) -> None:
    configurations = {}
    for name, run in zip(unique_names(runs), runs, strict=True):
        try:
            configuration = run.read_config()
            differences({name: configuration})
            configurations[name] = configuration
        except InputError as error:
            st.warning(str(error))
        except RecursionError:
            st.warning(f"{run.config_path} is nested too deeply to be compared")
    rows = differences(configurations)
    st.markdown("**Configuration: differences**")
    if rows:
        st.dataframe(rows, hide_index=True, column_config={"setting": "Setting"})
    else:
        st.caption("These runs have the same configuration.")
