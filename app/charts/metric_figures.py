"""What the live page and the comparison page draw of each metric, and the chart options that they share."""

import html
from typing import NamedTuple

import plotly.graph_objects as go
import streamlit as st

from app.charts.lines import metric_line
from app.charts.plotly_figures import COLORS, X_AXES, curve_figure
from app.charts.store import SPLITS, Snapshot

__all__ = ["KNOWN", "STANDARD", "Options", "controls", "look_of", "metric_figure"]

WINDOWS = {"Whole run": None, "Last 10,000": 10_000, "Last 1,000": 1_000, "Last 100": 100}


class Look(NamedTuple):
    """The title of a metric's chart, whether it is shown in percent, whether it may be logarithmic."""

    title: str
    percent: bool = False
    logarithmic: bool = False


# The metrics that labkit itself writes. Any other was added by a callback.
KNOWN = {
    "loss": Look("Loss", logarithmic=True),
    "accuracy": Look("Accuracy", percent=True),
    "learning_rate": Look("Learning rate", logarithmic=True),
    "examples_per_second": Look("Examples per second"),
    "top5_accuracy": Look("Top-5 accuracy", percent=True),
    "binary_accuracy": Look("Accuracy of single labels", percent=True),
    "f1_micro": Look("F1 of all labels together", percent=True),
    "f1_macro": Look("Mean F1 of the labels", percent=True),
    "seconds_per_step": Look("Seconds per step", logarithmic=True),
    "replica_examples_per_second": Look("Examples per second of one replica"),
    "input_wait_fraction": Look("Input wait", percent=True),
    "communication_fraction": Look("Communication", percent=True),
    "worker": Look("Worker that made the step"),
    "worker_seconds": Look("Seconds of one worker for a step", logarithmic=True),
    "examples": Look("Examples of an evaluation"),
    "seconds": Look("Seconds of an evaluation"),
}
STANDARD = ("loss", "accuracy", "learning_rate", "examples_per_second")  # always on the live page


def look_of(name: str) -> Look:
    """Return how a metric is drawn. Any that labkit doesn't know has its name as the title."""
    return KNOWN.get(name) or Look(name, logarithmic=True)


class Options(NamedTuple):
    """The chart options. ``window``: how many last steps to show; None: all."""

    x_axis: str = "step"
    smoothing: float = 0.0
    window: int | None = None
    log_y: bool = False


def controls() -> Options:
    """Draw the chart options, which are mirrored in the URL."""
    with st.container(horizontal=True, vertical_alignment="center", gap="large"):
        x_axis = st.segmented_control(
            "Over",
            list(X_AXES),
            default="step",
            format_func=lambda name: {"step": "Step", "epoch": "Epoch", "time": "Time"}[name],
            key="x",
            required=True,
            bind="query-params",
        )
        smoothing = st.slider(
            "Smoothing",
            0.0,
            0.99,
            0.6,
            0.01,
            key="smoothing",
            bind="query-params",
            width=240,
            help="Weight of the past in the moving average of training curves. Raw curves are faint.",
        )
        window = st.selectbox(
            "Steps", list(WINDOWS), key="steps", bind="query-params", width=180, filter_mode=None
        )
        log_y = st.toggle(
            "Logarithmic",
            key="log",
            bind="query-params",
            help="Applies to loss, learning rate, seconds per step and metrics that a callback adds.",
        )
    return Options(x_axis or "step", smoothing, WINDOWS[window], log_y)


def metric_figure(metrics: Snapshot, name: str, options: Options) -> go.Figure:
    """Return the chart of a metric, with a line for each split that has it."""
    end, look = metrics.last_step(), look_of(name)
    lines = [
        metric_line(metrics, split, name, split, COLORS[split], options.smoothing, options.window, end)
        for split in SPLITS
    ]
    resume_points = [
        resume_point
        for resume_point in metrics.resume_points
        if options.window is None or resume_point.step > end - options.window
    ]
    return curve_figure(
        lines,
        title=html.escape(look.title),  # Plotly takes some HTML in titles
        x_axis=options.x_axis,
        log_y=options.log_y and look.logarithmic,
        percent=look.percent,
        resume_points=resume_points,
    )
