"""Predictions of labels that are numbers: predicted against true, and the images with the largest errors."""

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from app.address import page_below
from app.charts.board import PALETTE
from app.images import cards
from app.markup import facts_html, number_text, one_of, plain
from app.predictions import parts
from app.predictions.images import PAGE_SIZE, part_of
from app.predictions.source import Source
from labkit.analysis.predictions import Indices, Predictions
from labkit.training.scores import number_metrics

LARGEST, SMALLEST = "Largest error first", "Smallest error first"
MOST_POINTS = 5_000  # of the plot


def panel(source: Source, predictions: Predictions) -> None:
    """Draw the scores of each number, the plot of one of them, and the images."""
    number = 0
    if len(predictions.classes) > 1:
        number = predictions.classes.index(
            st.selectbox("Number", predictions.classes, key="number", bind="query-params")
        )
    st.html(facts_html(_facts(source, predictions, number)))
    left, right = st.columns([9, 7], gap="small")
    with left:
        order = one_of("Order", [LARGEST, SMALLEST], "numbers-order")
        _grid(source, predictions, number, order)
    with right:
        st.plotly_chart(
            figure(predictions, number),
            key="numbers",
            config={"displayModeBar": False},
            alt=f"Predicted against true {predictions.classes[number]}",
        )
        parts.panel(source, predictions)


def _facts(source: Source, predictions: Predictions, number: int) -> list[tuple[str, str]]:
    row = number_metrics(predictions.labels, predictions.probabilities, predictions.classes)[number]
    summary = predictions.summary
    return [
        (f"{source.split.capitalize()} images", f"{len(predictions):,}"),
        ("Mean absolute error", number_text(row["mean_absolute_error"], ".4g")),
        ("Largest error", number_text(float(predictions.errors[:, number].max(initial=0.0)), ".4g")),
        ("R²", number_text(row["r2"], ".4f")),
        ("Loss", number_text(summary.get("loss"))),
        ("Checkpoint of step", number_text(summary.get("checkpoint_step"), ",")),
    ]


def figure(predictions: Predictions, number: int) -> go.Figure:
    """Return the plot of a predicted number over the true one; on the line both are equal."""
    places = np.sort(np.random.default_rng(0).permutation(len(predictions))[:MOST_POINTS])
    true, given = (values[places, number] for values in (predictions.labels, predictions.probabilities))
    ends = [float(min(true.min(), given.min())), float(max(true.max(), given.max()))] if len(true) else [0, 1]
    drawn = go.Figure()
    drawn.add_scatter(x=ends, y=ends, mode="lines", line={"color": PALETTE[-1], "width": 1}, hoverinfo="skip")
    drawn.add_scattergl(
        x=true,
        y=given,
        mode="markers",
        marker={"color": PALETTE[0], "size": 5, "opacity": 0.5},
        customdata=predictions.index[places],
        hovertemplate="image %{customdata}<br>true %{x:.4g}<br>predicted %{y:.4g}<extra></extra>",
    )
    name = plain(predictions.classes[number])
    drawn.update_layout(height=420, showlegend=False, margin={"l": 50, "r": 10, "t": 10, "b": 40})
    drawn.update_xaxes(title=f"true {name}")
    drawn.update_yaxes(title=f"predicted {name}")
    return drawn


def _grid(source: Source, predictions: Predictions, number: int, order: str) -> None:
    positions: Indices = np.argsort(-predictions.errors[:, number], kind="stable")
    if order == SMALLEST:
        positions = positions[::-1]

    def note(position: int) -> str:
        return f"off by {predictions.errors[position, number]:.4g}"

    page, above = page_below(len(positions), PAGE_SIZE, "page", (source, number, order), bound=True)
    with above, cards.readable():
        part = part_of(positions, page, f"{order.lower()}.")
        st.html(cards.grid(cards.prediction_cards(predictions, part, source.split, note, linked=True), 104))
