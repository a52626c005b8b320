"""What is drawn of each metric, and the options and the zoom that the pages with charts share."""

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import address
from app.charts import component, formulas
from app.charts.board import COLORS, PALETTE, Chart, Line, Seam, Size, Window, encode
from app.charts.smoothing import EXPONENTIAL, KINDS, smoothed, spacing
from app.charts.store import AXES, SPLITS, Snapshot, Timeline, timeline_of
from app.markup import one_of
from labkit.run_directory.columns import Floats
from labkit.run_directory.rows import result_name

IN_ADDRESS: dict[str, Any] = {"bind": "query-params", "filter_mode": None}  # of a selection
METRIC = "metric"  # the choice of an axis that is none of AXES
EARLIER_NAMES = {"training": ("time",)}  # of axes, in links that people have kept
Zoom = tuple[str, Window]  # an axis, and a part of it
Others = Sequence[tuple[str, Snapshot]]  # the runs that are laid over, by their labels
BESIDE = PALETTE[3:]  # a colour for each of them
DECADES = 4.0  # from which on an automatic axis is logarithmic
OUTLIER = 100  # so many times the median flatten all other values
SMOOTHING_HELP = "Of training curves, by their steps. Raw curves are faint. NaN stays where it is."
WEIGHT_HELP = "After as many steps as lie between two training rows. 0 smooths nothing."
SCALE_HELP = (
    "Applies to loss, learning rate, times, formulas and metrics that a callback adds. *Automatic*: where "
    f"the values are positive and span {DECADES:.0f} powers of ten, or the highest is {OUTLIER} times the "
    "median."
)
SCALES = {"auto": "Automatic", "on": "On", "off": "Off"}
USUAL = {"smooth": EXPONENTIAL, "smoothing": 0.6, "width": 20, "log": "auto", "steps": "Whole run"}
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
    "f1_macro": Look("Mean F1 of the classes", "percent"),
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
    """Return how a metric, or a formula after ``=``, is drawn.

    Any that labkit doesn't know has its name as the title. A formula that is only a name has its unit.
    """
    if name.startswith("="):
        alone = re.fullmatch(rf"(?:(?:{'|'.join(SPLITS)})/)?(\w+)", name[1:])
        return (KNOWN.get(alone[1] if alone else "") or Look("", logarithmic=True))._replace(title=name[1:])
    return KNOWN.get(name) or Look(name, logarithmic=True)


class Options(NamedTuple):
    """The chart options.

    ``axis``: a key of ``AXES``, or a metric such as ``train/loss``. ``smoothing``: the amount of
    ``smoothed``; 0: none. ``last``: how many steps to follow; None: all. ``logarithmic``: a key of
    ``SCALES``.
    """

    axis: str = "step"
    smoothing: float = 0.0
    last: int | None = None
    logarithmic: str = "auto"
    kind: str = EXPONENTIAL  # of the smoothing
    size: Size = "medium"

    @property
    def axis_kind(self) -> str:
        """How the page writes the numbers of the axis, as ``encode`` has it."""
        if self.axis in AXES:
            return {"training": "seconds", "examples": "count"}.get(self.axis, self.axis)
        return "percent" if look_of(self.axis.partition("/")[2]).unit == "percent" else "value"

    @property
    def axis_title(self) -> str:
        """What stands below the axis."""
        return AXES[self.axis][1] if self.axis in AXES else self.axis

    @property
    def smoothing_in_words(self) -> str:
        """How curves of the training are smoothed, in a sentence; "" where they aren't."""
        amount = f"{KINDS[self.kind].lower()}: {self.smoothing:g}"
        return f"Curves of the training are smoothed ({amount})." if self.smoothing else ""

    def is_logarithmic(self, name: str, lines: Sequence[Line]) -> bool:
        """Return whether the axis of a metric is logarithmic: as chosen, or as its values need."""
        if not look_of(name).logarithmic or self.logarithmic != "auto" or name == "learning_rate":
            return self.logarithmic == "on" and look_of(name).logarithmic
        raw = any(line.style == "faint" for line in lines)  # then the averages lie between them
        curves = [line.y for line in lines if line.style != "line" or not raw]
        known = [y[np.isfinite(y)] for y in curves]
        least = min((float(y.min()) for y in known if len(y)), default=0.0)
        greatest = max((float(y.max()) for y in known if len(y)), default=0.0)
        if least <= 0:
            return False
        usual = float(np.median(np.concatenate(known)))
        return math.log10(greatest) - math.log10(least) >= DECADES or greatest >= OUTLIER * usual


def controls(
    metrics: Iterable[str], panel: Callable[[], DeltaGenerator] | None = None
) -> tuple[Options, DeltaGenerator]:
    """Draw the chart options, which are mirrored in the URL. Returns them, and where all but the axis are.

    Args:
        metrics: that can be the axis, such as ``train/loss``.
        panel: makes that place; None: a popover beside the axis.
    """
    _understand_earlier()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
        labels = {name: label for name, (label, _) in AXES.items()} | {METRIC: "Metric"}
        axis: str | None = one_of("Over", labels, "x", format_func=labels.get, label_visibility="collapsed")
        if axis == METRIC:
            axis = st.selectbox(
                "Metric of the axis",
                list(metrics),
                key="over",
                bind="query-params",
                width=200,
                label_visibility="collapsed",
            )
        place = panel() if panel else st.popover("Charts", icon=":material/tune:", help="Smoothing, scale")
    with place:
        kind = st.selectbox("Smoothing", list(KINDS), key="smooth", help=SMOOTHING_HELP, **IN_ADDRESS)
        what = KINDS[kind]
        if kind == EXPONENTIAL:
            amount = st.slider(
                what, 0.0, 0.99, 0.6, 0.01, key="smoothing", bind="query-params", help=WEIGHT_HELP
            )
        else:
            amount = float(st.number_input(what, 0, 10**9, 20, key="width", bind="query-params"))
        followed = st.selectbox("Steps", list(FOLLOWED), key="steps", **IN_ADDRESS)
        logarithmic = one_of("Logarithmic", SCALES, "log", format_func=SCALES.get, help=SCALE_HELP)
    _follow_zoom(axis or "step")
    return Options(axis or "step", amount, FOLLOWED[followed], logarithmic, kind), place


def _understand_earlier() -> None:
    """Let the URL name an axis in any case, by its name or its label, and a scale as it was named before.

    Streamlit knows only the labels.
    """
    given = str(st.query_params.get("x", "")).lower()
    labels = {name: label.lower() for name, (label, _) in AXES.items()} | {METRIC: METRIC}
    for name, label in labels.items():
        if "x" not in st.session_state and given in (name, label, *EARLIER_NAMES.get(name, ())):
            st.session_state["x"] = name
    scale = str(st.query_params.get("log", "")).lower()
    if "log" not in st.session_state and scale in ("true", *SCALES):
        st.session_state["log"] = "on" if scale == "true" else scale


# ---- charts --------------------------------------------------------------------------------------------


def metric_chart(metrics: Snapshot, name: str, options: Options, others: Others = ()) -> Chart:
    """Return the chart of a metric, with a line for each split that has it, or of a formula after ``=``.

    ``others``: the runs that are laid over, below the lines of this one. Each has one colour; a line of it is
    dashed as that of the same split here.
    """
    look, lines = look_of(name), _lines_of(metrics, name, options, raw=True)
    logarithmic = metrics.memo.get(
        ("logarithmic", name, options.logarithmic), lambda: options.is_logarithmic(name, lines)
    )
    beside = [
        replace(
            line,
            name=f"{_short(label)}, {line.name}",
            color=color,
            pick=False,
            other=True,
            dashed_as=line.color,
        )
        for color, (label, other) in zip(BESIDE, others, strict=False)
        for line in _lines_of(other, name, options, raw=False)
    ]
    return Chart(name, look.title, [*beside, *lines], look.unit, logarithmic)


def _lines_of(metrics: Snapshot, name: str, options: Options, raw: bool) -> list[Line]:
    if name.startswith("="):
        labels = {formulas.found(metrics, name[1:]).split: "formula"}
    else:
        labels = {split: split for split in SPLITS}
    return [
        line
        for split, label in labels.items()
        for line in metric_lines(metrics, split, name, label, COLORS[split], options, raw=raw)
    ]


def _short(label: str) -> str:
    """Return a label of at most 20 characters. The end, which often tells runs apart, is kept."""
    return label if len(label) <= 20 else f"{label[:8]}…{label[-11:]}"


def metric_lines(
    metrics: Snapshot, split: str, name: str, label: str, color: str, options: Options, *, raw: bool
) -> list[Line]:
    """Return the line of a metric, or of a formula after ``=``, whose densest curve is of ``split``.

    Before it are the raw values, faint, if it is smoothed and ``raw`` is wanted. Only training metrics are
    smoothed, and the learning rate never is. A click picks no point on a metric as the axis, where several
    steps may have one place.
    """
    pick = split == "train" and options.axis in AXES
    key = (split, name, options.axis)
    x, y = metrics.memo.get(key, lambda: _points(metrics, split, name, options))
    if split != "train" or name == "learning_rate" or not options.smoothing:
        return [Line(label, x, y, color, "line" if split == "train" else "marked", pick=pick)]
    smooth = (*key, options.kind, options.smoothing)
    y_smooth = metrics.memo.get(smooth, lambda: _points(metrics, split, name, options, smooth=True)[1])
    average = Line(label, x, y_smooth, color, pick=pick)
    return [Line(f"{label}, raw", x, y, color, "faint"), average] if raw else [average]


def _points(
    metrics: Snapshot, split: str, name: str, options: Options, smooth: bool = False
) -> tuple[Floats, Floats]:
    formula, timeline = name.startswith("="), timeline_of(metrics)
    curve = formulas.found(metrics, name[1:]).curve if formula else metrics.curve(split, name)
    x, y = timeline.x(curve, options.axis), curve.y
    if smooth:
        apart = metrics.memo.get("spacing", lambda: spacing(timeline.step))
        y = smoothed(y, curve.step, options.kind, options.smoothing, apart)
    known = np.isfinite(x)
    return (x, y) if known.all() else (x[known], y[known])


def board_of(
    metrics: Snapshot,
    options: Options,
    run: str,
    version: Hashable,
    charts: Callable[[], Sequence[Chart]],
    *,
    window: Window | None = None,
    marks: tuple[Seam, ...] = (),
    **more: Any,
) -> bytes:
    """Return a board of a run's charts, made once for each change of the metrics, the options and the zoom.

    Args:
        metrics: of the run.
        options: of the charts.
        run: its name.
        version: of all else that the charts depend on.
        charts: makes them.
        window: the part of the axis to show; None: all.
        marks: vertical lines beside those of the resume points.
        more: of ``encode``.
    """

    def make() -> bytes:
        return encode(
            charts(),
            axis=options.axis_kind,
            x_title=options.axis_title,
            window=window,
            seams=[*seams_of(metrics, options), *marks],
            name=run,
            size=options.size,
            **more,
        )

    return metrics.memo.get(("board", options, window, run, version, marks, *more.values()), make)


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
        st.session_state["zoom"] = None
        with suppress(ValueError):  # not two numbers
            low, high = map(float, (text or "").split(","))
            if np.isfinite(low) and np.isfinite(high) and low < high:
                st.session_state["zoom"] = axis, (low, high)


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
