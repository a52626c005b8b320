"""The step whose batch the live page shows: picked on a curve, kept in the session and in the URL."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import streamlit as st

from app import address
from app.charts.board import Seam
from app.charts.metric_charts import Options, place_of
from app.charts.store import Snapshot, timeline_of
from labkit.run_directory import RunDirectory

HINT = "the images of this batch"
PARAMETER = "batch"  # of the URL
AROUND = 25  # steps on either side that a step's loss is compared with


def chosen_step(run: RunDirectory) -> int | None:
    """Return the step whose batch is shown; 0 if the URL names no number; None if none is shown.

    It outlives a change of the page, and is known for each run of the session.
    """
    return st.session_state.get("batches", {}).get(str(run.path))


def follow_step(run: RunDirectory) -> int | None:
    """Return the step whose batch the page shall show, and keep it in the URL. Call it once for each page."""
    step = chosen_step(run)
    shown = None if step is None else str(step)
    text = address.follow(PARAMETER, shown)
    if text != shown:
        step = None if text is None else _number(text)
        choose_step(run, step)
    return step


def choose_step(run: RunDirectory, step: int | None, *, scroll: bool = False) -> None:
    """Show the batch of a step; None shows none. ``scroll``: the page scrolls to it."""
    st.session_state.setdefault("batches", {})[str(run.path)] = step
    if scroll:
        st.session_state["batch-scrolls"] = scrolls() + 1


def scrolls() -> int:
    """Return how often the page was asked to scroll to the batch. A change asks for it."""
    return int(st.session_state.get("batch-scrolls", 0))


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]{1,11}", text) else 0


def on_pick(key: str, run: RunDirectory, metrics: Snapshot, options: Options) -> Callable[[], None]:
    """Return the callback for a click on a point of the board ``key``: it chooses the step of the point."""

    def pick() -> None:
        step = step_of_point(metrics, options, st.session_state[key].get("picked"))
        if step is not None:
            choose_step(run, step, scroll=True)

    return pick


def step_of_point(metrics: Snapshot, options: Options, point: Any) -> int | None:
    """Return the training step of a point that a board reports; None if there is none.

    A downsampled line still has points of single steps, so it is the very step of that point.
    """
    try:
        curve, x = metrics.curve("train", str(point["chart"])), float(point["x"])
    except (TypeError, KeyError, ValueError):
        return None
    places = timeline_of(metrics).x(curve, options.axis)
    distance = np.abs(places - x)
    if not np.isfinite(distance).any():
        return None
    step = curve.step[int(np.nanargmin(distance))]
    return int(step) if np.isfinite(step) else None


def mark(metrics: Snapshot, options: Options, step: int | None) -> tuple[Seam, ...]:
    """Return the line that shows on the charts which step's batch is shown."""
    timeline = timeline_of(metrics)
    if not step or not len(timeline.step) or not timeline.step[0] <= step <= timeline.step[-1]:
        return ()
    return (Seam(place_of(timeline, options, step), f"batch of step {step:,}", strong=True),)


def values_at(metrics: Snapshot, step: int) -> dict[str, float]:
    """Return the training metrics that the run recorded of a step; empty if it recorded none."""
    table = metrics.tables.get("train")
    if table is None:
        return {}
    rows = np.flatnonzero(table.columns["step"] == step).tolist()
    if not rows:
        return {}
    row = rows[-1]
    return {name: float(values[row]) for name, values in table.columns.items() if table.present[name][row]}


def neighbourhood(metrics: Snapshot, step: int) -> float | None:
    """Return the median loss of the up to 25 steps on either side of a step; None if there are none."""
    curve = metrics.curve("train", "loss")
    near = (np.abs(curve.step - step) <= AROUND) & (curve.step != step) & np.isfinite(curve.y)
    return float(np.median(curve.y[near])) if near.any() else None
