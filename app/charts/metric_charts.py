"""What is drawn of each metric, and the options and the zoom that the pages with charts share."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import streamlit as st

from app import address
from app.charts import component
from app.charts.board import COLORS, Chart, Line, Seam, Window, encode
from app.charts.store import AXES, SPLITS, Snapshot, Timeline, timeline_of
from labkit.analysis.curves import Floats, moving_average
from labkit.run_directory.rows import result_name

EARLIER_NAMES = {"training": ("time",)}  # of axes, in links that people have kept
Zoom = tuple[str, Window]  # an axis, and a part of it
FOLLOWED = {"Whole run": None, "Last 10,000": 10_000, "Last 1,000": 1_000, "Last 100": 100}


class Look(NamedTuple):
    """The title of a metric's chart, the unit of its values, whether its axis may be logarithmic."""

    title: str
    unit: str = ""
    logarithmic: bool = False


# The metrics that labkit itself writes. Any other was added by a callback.
KNOWN = {
    "loss": Look("Loss", logarithmic=True),
    "accuracy": Look("Accuracy", "percent"),
    "mean_absolute_error": Look("Mean absolute error", logarithmic=True),
    "r2": Look("R²"),
    "learning_rate": Look("Learning rate", logarithmic=True),
    "examples_per_second": Look("Examples per second"),
    "top5_accuracy": Look("Top-5 accuracy", "percent"),
    "binary_accuracy": Look("Accuracy of single labels", "percent"),
    "f1_micro": Look("F1 of all labels together", "percent"),
    "f1_macro": Look("Mean F1 of the labels", "percent"),
    "seconds_per_step": Look("Time of a step", "seconds", logarithmic=True),
    "replica_examples_per_second": Look("Examples per second of one replica"),
    "input_wait_fraction": Look("Input wait", "percent"),
    "communication_fraction": Look("Communication", "percent"),
    "worker": Look("Worker that made the step"),
    "worker_seconds": Look("Time of one worker for a step", "seconds", logarithmic=True),
    "examples": Look("Examples of an evaluation"),
    "seconds": Look("Time of an evaluation", "seconds"),
}


def standard(names: Collection[str]) -> tuple[str, ...]:
    """Return the metrics that are first on the live page, of a run whose rows have these.

    Without rows yet, those of a training by labkit. Another program may record fewer.
    """
    usual = "loss", result_name(dict.fromkeys(names)), "learning_rate", "examples_per_second"
    return tuple(name for name in usual if name in names) or usual


def look_of(name: str) -> Look:
    """Return how a metric is drawn. Any that labkit doesn't know has its name as the title."""
    return KNOWN.get(name) or Look(name, logarithmic=True)


class Options(NamedTuple):
    """The chart options. ``last``: how many steps to follow; None: all. ``smoothing``: weight of the past."""

    axis: str = "step"
    smoothing: float = 0.0
    last: int | None = None
    logarithmic: bool = False


def controls(choose: Callable[[], list[str]] = list) -> tuple[Options, list[str]]:
    """Draw the chart options, which are mirrored in the URL.

    Args:
        choose: draws the selection of further metrics among the options, and returns the chosen ones.
    """
    _understand_axis()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
        axis = st.segmented_control(
            "Over",
            list(AXES),
            default="step",
            format_func=lambda name: AXES[name][0],
            key="x",
            required=True,
            bind="query-params",
            label_visibility="collapsed",
        )
        with st.popover("Charts", icon=":material/tune:", help="Smoothing, steps, scale, more metrics"):
            smoothing = st.slider(
                "Smoothing",
                0.0,
                0.99,
                0.6,
                0.01,
                key="smoothing",
                bind="query-params",
                help="Weight of the past in the moving average of training curves. Raw curves are faint.",
            )
            followed = st.selectbox(
                "Steps", list(FOLLOWED), key="steps", bind="query-params", filter_mode=None
            )
            logarithmic = st.toggle(
                "Logarithmic",
                key="log",
                bind="query-params",
                help="Applies to loss, learning rate, times and metrics that a callback adds.",
            )
            chosen = choose()
    _follow_zoom(axis or "step")
    return Options(axis or "step", smoothing, FOLLOWED[followed], logarithmic), chosen


def _understand_axis() -> None:
    """Let the URL name an axis in any case, by its name or its label. Streamlit knows only the label."""
    given = str(st.query_params.get("x", "")).lower()
    for name, (label, _) in AXES.items():
        if "x" not in st.session_state and given in (name, label.lower(), *EARLIER_NAMES.get(name, ())):
            st.session_state["x"] = name


# ---- charts --------------------------------------------------------------------------------------------


def metric_chart(metrics: Snapshot, name: str, options: Options) -> Chart:
    """Return the chart of a metric, with a line for each split that has it."""
    look = look_of(name)
    lines = [
        line
        for split in SPLITS
        for line in metric_lines(metrics, split, name, split, COLORS[split], options, raw=True)
    ]
    return Chart(name, look.title, lines, look.unit, options.logarithmic and look.logarithmic)


def metric_lines(
    metrics: Snapshot, split: str, name: str, label: str, color: str, options: Options, *, raw: bool
) -> list[Line]:
    """Return the line of a metric; before it the raw values, faint, if it is smoothed and ``raw`` is wanted.

    Only training metrics are smoothed, and the learning rate never is.
    """
    x, y = metrics.memo.get((split, name, options.axis), lambda: _points(metrics, split, name, options.axis))
    markers = split != "train"
    if markers or name == "learning_rate" or not options.smoothing:
        return [Line(label, x, y, color, "marked" if markers else "line", pick=split == "train")]
    average = metrics.memo.get(
        (split, name, options.axis, options.smoothing), lambda: moving_average(y, options.smoothing)
    )
    smoothed = Line(label, x, average, color, pick=True)
    return [Line(f"{label}, raw", x, y, color, "faint"), smoothed] if raw else [smoothed]


def _points(metrics: Snapshot, split: str, name: str, axis: str) -> tuple[Floats, Floats]:
    curve = metrics.curve(split, name)
    x = timeline_of(metrics).x(curve, axis)
    known = np.isfinite(x)
    return (x, curve.y) if known.all() else (x[known], curve.y[known])


def board_of(
    metrics: Snapshot,
    options: Options,
    run: str,
    version: Hashable,
    charts: Callable[[], Sequence[Chart]],
    *,
    window: Window | None = None,
    ident: str = "",
    marks: tuple[Seam, ...] = (),
    pick: str = "",
) -> bytes:
    """Return a board of a run's charts, made once for each change of the metrics, the options and the zoom.

    Args:
        metrics: of the run.
        options: of the charts.
        run: its name.
        version: of all else that the charts depend on.
        charts: makes them.
        window: the part of the axis to show; None: all.
        ident: tells the board from others of its page.
        marks: vertical lines beside those of the resume points.
        pick: what a click on a point of a training curve shows.
    """

    def make() -> bytes:
        return encode(
            charts(),
            axis=axis_kind(options),
            x_title=AXES[options.axis][1],
            window=window,
            seams=[*seams_of(metrics, options), *marks],
            name=run,
            pick=pick,
            ident=ident,
        )

    return metrics.memo.get(("board", options, window, run, version, ident, marks, pick), make)


def axis_kind(options: Options) -> str:
    """Return how the page writes the numbers of the axis: as steps, epochs, spans of time or times of day."""
    return {"training": "seconds"}.get(options.axis, options.axis)


def seams_of(metrics: Snapshot, options: Options) -> list[Seam]:
    """Return a vertical line for each place where the run was resumed."""
    timeline = timeline_of(metrics)
    seams = []
    for point in metrics.resume_points:
        if options.axis == "clock" and not timeline.was_set_back:
            x = point.wall_time
        elif len(timeline.step):
            x = place_of(timeline, options, point.step)
        else:
            continue
        seams.append(Seam(x, f"resumed at {point.step:,}"))
    return seams


def place_of(timeline: Timeline, options: Options, step: float) -> float:
    """Return where the axis has a step. The timeline must have steps."""
    return float(np.interp(step, timeline.step, timeline.on(options.axis)))


# ---- zoom ----------------------------------------------------------------------------------------------


def window_of(options: Options, timeline: Timeline | None = None) -> Window | None:
    """Return the part of the axis to show: the zoom of the person, or the last steps; None: all."""
    return window_in(zoom_of(options, timeline), options, timeline)


def zoom_of(options: Options, timeline: Timeline | None) -> Window | None:
    """Return the zoom of the person; None without any.

    It is kept in the session and in the URL, so it outlives a change of the page. If the axis was
    changed, ``timeline`` tells which part of the new one shows the same steps.
    """
    zoom: Zoom | None = st.session_state.get("zoom")
    if zoom is not None and zoom[0] != options.axis:
        window = timeline.convert(zoom[1], zoom[0], options.axis) if timeline else None
        zoom = st.session_state["zoom"] = (options.axis, window) if window else None
    address.show("zoom", _as_text(zoom))
    return zoom[1] if zoom else None


def _follow_zoom(axis: str) -> None:
    """Take over the zoom of a link, or of the address that the reader went back to."""
    shown = _as_text(st.session_state.get("zoom"))
    text = address.follow("zoom", shown)
    if text != shown:
        st.session_state["zoom"] = _zoom_of_text(text or "", axis)


def window_in(zoom: Window | None, options: Options, timeline: Timeline | None) -> Window | None:
    """Return the part of the axis to show: ``zoom``, or without one the last steps; None: all."""
    if zoom is not None:
        return zoom
    if options.last is None or timeline is None or len(timeline.step) < 2:
        return None
    end = float(timeline.step[-1])
    return timeline.convert((max(end - options.last, timeline.step[0]), end), "step", options.axis)


def remember_window(key: str, options: Options) -> None:
    """Keep the zoom that the board ``key`` reports. Call it from the board's callback."""
    window = component.shown_window(key)
    st.session_state["zoom"] = (options.axis, window) if window else None
    if window is None:  # the whole run
        st.session_state["steps"] = next(iter(FOLLOWED))


def _as_text(zoom: Zoom | None) -> str | None:
    return None if zoom is None else ",".join(f"{value:.12g}" for value in zoom[1])


def _zoom_of_text(text: str, axis: str) -> Zoom | None:
    try:
        low, high = (float(value) for value in text.split(","))
    except ValueError:
        return None
    return (axis, (low, high)) if np.isfinite(low) and np.isfinite(high) and low < high else None
