"""The step whose batch the live page shows: picked on a curve, kept in the session and in the URL."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import streamlit as st
from numpy.lib.stride_tricks import sliding_window_view

from app import address
from app.charts import formulas
from app.charts.board import Seam
from app.charts.metric_charts import Options, place_of
from app.charts.store import Curve, Snapshot, timeline_of
from labkit.run_directory import RunDirectory
from labkit.run_directory.notes import read_notes

HINT = "the images of this batch"
PARAMETER = "batch"  # of the URL
AROUND = 25  # steps on either side that a step's loss is compared with
JUMPS = 5  # of the loss, that are listed
ROWS = 3  # of the labels of notes, which would cover each other in one
COMPARED = 100  # parts of a curve that may have a jump


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
        step = None if text is None else int(text) if re.fullmatch(r"-?[0-9]{1,11}", text) else 0
        choose_step(run, step)
    return step


def choose_step(run: RunDirectory, step: int | None, *, scroll: bool = False) -> None:
    """Show the batch of a step; None shows none. ``scroll``: the page scrolls to it."""
    st.session_state.setdefault("batches", {})[str(run.path)] = step
    if scroll:
        st.session_state["batch-scrolls"] = scrolls() + 1


def step_button(
    label: str, run: RunDirectory, step: int | None, *, scroll: bool = False, **look: Any
) -> None:
    """Draw a button that does what ``choose_step`` does. ``look``: of ``st.button``."""
    st.button(label, on_click=choose_step, args=(run, step), kwargs={"scroll": scroll}, **look)


def scrolls() -> int:
    """Return how often the page was asked to scroll to the batch. A change asks for it."""
    return int(st.session_state.get("batch-scrolls", 0))


def on_pick(key: str, run: RunDirectory, metrics: Snapshot, options: Options) -> Callable[[], None]:
    """Return the callback for a click on a point of the board ``key``: it chooses the step of the point."""

    def pick() -> None:
        point = st.session_state[key].get("picked")
        step = step_of_point(metrics, options, point)
        if step is not None:
            choose_step(run, step, scroll=not point.get("walked"))

    return pick


def step_of_point(metrics: Snapshot, options: Options, point: Any) -> int | None:
    """Return the training step of a point that a board reports; None if there is none.

    A downsampled line still has points of single steps, so it is the very step of that point.
    """
    try:
        name, x = str(point["chart"]), float(point["x"])
    except (TypeError, KeyError, ValueError):
        return None
    formula = name.startswith("=")
    curve = formulas.found(metrics, name[1:]).curve if formula else metrics.curve("train", name)
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
    return (Seam(place_of(timeline, options, step), f"batch of step {step:,}", strong=True, row=1),)


def notes(metrics: Snapshot, options: Options, run: RunDirectory) -> tuple[Seam, ...]:
    """Return the lines that show the notes on steps. Neighbours have their labels in different rows."""
    found = enumerate(read_notes(run).steps)
    return tuple(
        replace(seam, label=text, strong=False, row=2 + number % ROWS)
        for number, (step, text) in found
        for seam in mark(metrics, options, step)
    )


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


def neighbourhood(loss: Curve, step: float) -> float | None:
    """Return the median loss of the up to 25 steps on either side of a step; None if there are none."""
    near = slice(*np.searchsorted(loss.step, (step - AROUND, step + AROUND + 1)))
    around = loss.y[near][(loss.step[near] != step) & np.isfinite(loss.y[near])]
    return float(np.median(around)) if len(around) else None


def jumps(metrics: Snapshot) -> list[tuple[int, float]]:
    """Return the five steps whose loss is highest over ``neighbourhood``, with that ratio, the largest first.

    Each is above the steps before it and those after it, which the first steps of a training aren't. Of jumps
    closer than 25 steps only the largest counts. Computed once for each change of the metrics.
    """
    return metrics.memo.get("jumps", lambda: _jumps(metrics.curve("train", "loss")))


def _jumps(loss: Curve) -> list[tuple[int, float]]:
    known = np.isfinite(loss.y) & np.isfinite(loss.step)
    step, y = loss.step[known], loss.y[known]
    if not len(y):
        return []
    # The highest loss of each 25 rows; of many, only the promising ones are compared with their neighbours.
    parts = np.pad(y, (0, -len(y) % AROUND), mode="edge").reshape(-1, AROUND)
    middle = np.partition(parts, AROUND // 2, axis=1)[:, AROUND // 2]  # a sixth of the time of np.median
    usual = sliding_window_view(np.pad(middle, 1, mode="edge"), 3).min(axis=1)
    rough = np.divide(parts.max(axis=1), usual, out=np.zeros(len(parts)), where=usual > 0)
    found = []
    for part in np.argsort(-rough)[:COMPARED].tolist():
        place = part * AROUND + int(parts[part].argmax())
        sides = y[max(0, place - AROUND) : place], y[place + 1 : place + 1 + AROUND]
        around = neighbourhood(loss, step[place])
        if around and all(len(side) and y[place] > np.median(side) for side in sides):
            found.append((int(step[place]), float(y[place]) / around))
    found.sort(key=lambda jump: -jump[1])
    apart: list[tuple[int, float]] = []
    for jump in found:
        if all(abs(jump[0] - other) > AROUND for other, _ in apart):
            apart.append(jump)
    return apart[:JUMPS]
