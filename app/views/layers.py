"""The page that looks inside the network: what each layer did, as ``layers.jsonl`` records it."""

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import state
from app.charts import component
from app.charts.board import PALETTE
from app.charts.layer_charts import (
    QUANTITIES,
    Layers,
    distribution_charts,
    heat_map,
    lines_chart,
    profile_chart,
)
from app.charts.store import follow, store_of
from app.live_update import heading
from app.markup import number_text, one_of, show_command
from labkit.config.config import recorded_by
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.columns import Floats
from labkit.run_directory.layers import DISTRIBUTIONS, LEVELS, LayerReader, LayerRow, layer_rows_that_count
from labkit.run_directory.layers import QUANTITIES as NAMES
from labkit.run_directory.rows import ResumePoint

REFRESH_SECONDS = 2.0
HEIGHT = 300  # of a chart's drawing area, in pixels
MAX_ROWS = 10_000  # the last ones are kept; with 60 layers they take some 30 MB
MAX_STEPS = 200  # offered for the profile
LINES = 5  # layers that are chosen at first
FIRST = "activation_std"  # the quantity that is shown first
LATEST = "latest"


@dataclass(frozen=True)
class _Row:
    """A row of ``layers.jsonl``. The arrays are those of one step of ``Layers``."""

    step: int
    wall_time: float
    layers: tuple[str, ...]
    values: Floats
    present: NDArray[np.bool_]
    quantiles: NDArray[np.float32]


class LayerStore:
    """Follows ``layers.jsonl`` of a run. Several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._reader = LayerReader(path)
        self._lock = threading.Lock()
        self._rows: deque[_Row] = deque(maxlen=MAX_ROWS)
        self._seen: tuple[object, ...] | None = None
        self._layers = _stacked([], 0, 0)

    def poll(self, resume_points: tuple[ResumePoint, ...]) -> Layers:
        """Read what was appended and return the rows that count. Raises OSError for an unreadable file."""
        with self._lock:
            changed = follow(
                self._reader, lambda rows: self._rows.extend(map(_compact, rows)), self._rows.clear
            )
            seen = (resume_points, self._reader.damaged_lines)
            if changed or seen != self._seen:
                self._seen = seen
                rows_that_count = layer_rows_that_count(self._rows, resume_points)
                version = self._layers.version + 1
                self._layers = _stacked(rows_that_count, self._reader.damaged_lines, version)
            return self._layers


def _compact(row: LayerRow) -> _Row:
    columns = [row.values[name] for name in NAMES]
    present = np.array([[value is not None for value in column] for column in columns])
    nothing = (np.nan,) * len(LEVELS)
    quantiles = [[found or nothing for found in row.quantiles[kind]] for kind in DISTRIBUTIONS]
    values = np.array(columns, np.float64)
    return _Row(row.step, row.wall_time, row.layers, values, present, np.array(quantiles, np.float32))


def _stacked(rows: list[_Row], damaged_lines: int, version: int) -> Layers:
    """Return the rows as arrays over the layers of the last row."""
    names = rows[-1].layers if rows else ()
    values = np.full((len(rows), len(NAMES), len(names)), np.nan)
    present = np.zeros(values.shape, bool)
    for number, row in enumerate(rows):
        if row.layers == names:
            values[number], present[number] = row.values, row.present
            continue
        indices = {name: index for index, name in enumerate(row.layers)}
        shared = [index for index, name in enumerate(names) if name in indices]
        there = [indices[names[index]] for index in shared]
        values[number][:, shared], present[number][:, shared] = row.values[:, there], row.present[:, there]
    step = np.array([row.step for row in rows], np.float64)
    quantiles = [(row.layers, row.quantiles) for row in rows]
    return Layers(names, step, values, present, damaged_lines, version, quantiles)


def page() -> None:
    """Draw the page of the selected run."""
    run = state.selected_run()
    heading(run, "Layers")
    component.prepare()
    st.fragment(_panel, run_every=REFRESH_SECONDS, key="inside")(run)


def _panel(run: RunDirectory) -> None:
    path = run.metrics_path
    try:
        resume_points = state.curves(run).resume_points
        path = run.layers_path
        layers = store_of(LayerStore, path).poll(resume_points)
    except OSError as error:
        st.error(f"{state.as_code(path)} can't be read: {error.strerror}")
        return
    if layers.damaged_lines:
        st.warning(f"Left out of `layers.jsonl`: {counted(layers.damaged_lines, 'damaged line')}.")
    if not len(layers.step):
        if recorded_by(run):
            st.info("Another program recorded this run; only trainings by labkit have values of layers.")
            return
        st.info("This run has recorded no values of its layers. To record them every 50 steps, train with:")
        show_command("--inspect-every-steps 50")
        return
    quantity, row, chosen = _options(run, layers)
    if not layers.of(quantity)[0]:
        st.info(f"No layer has a value of this quantity: {QUANTITIES[quantity].title.lower()}.")
        return
    _draw(run, layers, quantity, row, chosen)
    _distributions(run, layers)
    _table(layers, row)


def _draw(run: RunDirectory, layers: Layers, quantity: str, row: int, chosen: list[str]) -> None:
    wanted = run.path, layers.version, quantity
    heat = component.made("layer-heat", wanted, lambda: heat_map(layers, quantity))
    component.draw_heat(heat, key=component.key_of("layers-heat", run.path))
    lines, profile = (component.key_of("layers", kind, quantity, run.path) for kind in ("lines", "profile"))
    left, right = st.columns(2)
    look: dict[str, Any] = {"name": run.name, "height": HEIGHT}
    with left:
        make = partial(lines_chart, layers, quantity, chosen)
        component.draw_charts(
            lines, (*wanted, *chosen), lambda _: [make()], axis="step", x_title="Step", **look
        )
    with right:
        names = [layers.names[index] for index in layers.of(quantity)[0]]
        make = partial(profile_chart, layers, quantity, row)
        component.draw_charts(profile, (*wanted, row), lambda _: [make()], axis="name", ticks=names, **look)


def _distributions(run: RunDirectory, layers: Layers) -> None:
    """Draw how the weights, gradients and outputs of one layer are distributed over the steps."""
    names, values = layers.quantiles[-1]
    if not np.isfinite(values).any():
        st.caption("This run recorded no distributions of its layers. A new run records them with:")
        show_command("--inspect-every-steps 50")
        return
    weighted = np.isfinite(values[DISTRIBUTIONS.index("weight_quantiles")]).all(axis=1)
    layer = st.selectbox(
        "Distributions of the layer",
        names,
        index=int(weighted.argmax()),
        key=f"distribution-{run.path}",
        width=320,
        help="The median, and bands: 25 to 75 %, 5 to 95 %, 1 to 99 %, lowest to highest value.",
    )
    layer = layer or names[0]
    key, make = component.key_of("layers-distribution", run.path), partial(distribution_charts, layers, layer)
    wanted = run.path, layers.version, layer
    if not component.draw_charts(key, wanted, make, axis="step", x_title="Step", name=run.name):
        st.caption("No distribution of this layer was recorded.")


def _options(run: RunDirectory, layers: Layers) -> tuple[str, int, list[str]]:
    """Draw the options. Returns the quantity, the row for the profile, and the layers for the lines."""
    titles = {name: one.title for name, one in QUANTITIES.items()}
    quantity = one_of("Quantity", titles, "quantity", FIRST, format_func=titles.get)
    offered = np.unique(np.linspace(0, len(layers.step) - 1, MAX_STEPS).astype(int))[::-1]
    rows = {LATEST: len(layers.step) - 1, **{f"{layers.step[row]:.0f}": int(row) for row in offered}}
    left, right = st.columns([4, 1])
    # Layers without weights have no gradient, and only some layers have zeros: each group has its selection.
    group = {"gradient_norm": "weights", "update_ratio": "weights", "zero_fraction": "zeros"}.get(quantity)
    chosen = left.multiselect(
        "Layers",
        [layers.names[index] for index in layers.of(quantity)[0]],
        default=_spread(layers, quantity),
        key=f"layers-{group or 'activations'}-{run.path}",
        max_selections=len(PALETTE),
        help="Drawn over the steps.",
    )
    at = right.selectbox("Profile at step", list(rows), key="at", bind="query-params")
    return quantity, rows[at], chosen


def _spread(layers: Layers, quantity: str) -> list[str]:
    """Return a few layers spread over the depth, of those whose last value isn't zero if there are any."""
    indices, values, _ = layers.of(quantity)
    names = [layers.names[index] for index in indices]
    names = [name for name, value in zip(names, values[-1], strict=True) if value != 0] or names
    if not names:
        return []
    chosen = np.unique(np.linspace(0, len(names) - 1, LINES).astype(int))
    return [names[index] for index in chosen]


def _table(layers: Layers, row: int) -> None:
    with st.expander(f"Table: all values at step {layers.step[row]:,.0f}"):
        st.dataframe(
            [
                {"Layer": name}
                | {
                    QUANTITIES[quantity].title: number_text(float(value) if present else None, ".6g")
                    for quantity, value, present in zip(
                        NAMES, layers.values[row, :, index], layers.present[row, :, index], strict=True
                    )
                }
                for index, name in enumerate(layers.names)
            ],
            hide_index=True,
            key="layers-table",
        )
