"""The chart options that the live page and the comparison page share, mirrored in the URL."""

import streamlit as st

from app.charts import X_AXES

__all__ = ["controls"]

WINDOWS = {"Whole run": None, "Last 10,000": 10_000, "Last 1,000": 1_000, "Last 100": 100}


def controls() -> tuple[str, float, int | None, bool]:
    """Draw the chart options. Returns the x axis, smoothing, number of last steps, and log scale."""
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
            "Logarithmic", key="log", bind="query-params", help="Applies to loss and learning rate."
        )
    return x_axis or "step", smoothing, WINDOWS[window], log_y
