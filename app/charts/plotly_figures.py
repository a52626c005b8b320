"""Make Plotly figures from data. Nothing here draws on a page."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.charts.board import PALETTE

__all__ = ["base_layout", "shares_figure", "staleness_figure"]

LEGEND = {"orientation": "h", "x": 1, "xanchor": "right", "y": 0.98, "yref": "container", "yanchor": "top"}


def base_layout(title: str, height: int) -> dict[str, Any]:
    font = {"size": 15, "weight": 600}
    return {
        "title": {"text": title, "font": font, "x": 0, "xanchor": "left", "y": 0.97, "yanchor": "top"},
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": height,
    }


def shares_figure(shares: Mapping[str, Sequence[float]], *, title: str) -> go.Figure:
    """Draw a bar for each worker with its shares of time.

    Args:
        shares: of compute, communication, and input or waiting, by the worker's name.
        title: of the chart.
    """
    names = list(shares)
    figure = go.Figure()
    kinds = (("compute", PALETTE[0]), ("communication", PALETTE[1]), ("input, waiting", PALETTE[7]))
    for number, (kind, color) in enumerate(kinds):
        figure.add_bar(
            x=[shares[name][number] for name in names],
            y=names,
            orientation="h",
            name=kind,
            marker={"color": color},
            hovertemplate="%{x:.1%}",
        )
    figure.update_layout(
        base_layout(title, max(300, 120 + 28 * len(names))),
        barmode="stack",
        bargap=0.4,
        margin={"l": 8, "r": 16, "t": 56, "b": 8},
        hovermode="y unified",
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -0.12,
            "yanchor": "top",
            "traceorder": "normal",
        },
        uirevision="shares",
        xaxis={"range": [0, 1], "tickformat": ".0%", "automargin": True, "showgrid": False},
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False, "ticklabelstandoff": 6},
    )
    return figure


def staleness_figure(counts: Mapping[str, Mapping[int, int]], *, title: str) -> go.Figure:
    """Draw, for each worker, the share of its updates at each staleness.

    Args:
        counts: updates at each staleness, by the worker's name.
        title: of the chart.
    """
    figure = go.Figure()
    for number, (name, of_worker) in enumerate(counts.items()):
        values = sorted(of_worker)
        total = sum(of_worker.values())
        figure.add_bar(
            x=values,
            y=[of_worker[value] / total for value in values],
            customdata=[of_worker[value] for value in values],
            name=name,
            marker={"color": PALETTE[number % len(PALETTE)]},
            hovertemplate="%{y:.1%} (%{customdata:,} updates)",
        )
    figure.update_layout(
        base_layout(title, 300),
        barmode="group",
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        hovermode="x unified",
        legend=LEGEND,
        uirevision="staleness",
        xaxis={
            "title": {"text": "Updates by other workers since the weights were read", "standoff": 6},
            "automargin": True,
            "showgrid": False,
            "tickformat": "d",
        },
        yaxis={"automargin": True, "tickformat": ".0%"},
    )
    return figure
