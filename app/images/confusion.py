"""The confusion matrix as a Plotly figure whose cells can be clicked."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

__all__ = ["confusion_figure"]


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str]) -> go.Figure:
    """Draw a confusion matrix. The colour of a cell is its share of the true class.

    Heat maps can't be clicked. An invisible square marker therefore lies on every cell, whose ``customdata``
    is (true, predicted).

    Args:
        confusion: counts, int64 [true class, predicted class].
        classes: their names.
    """
    count = len(classes)
    totals = confusion.sum(axis=1, keepdims=True)
    share = np.divide(confusion, totals, out=np.zeros(confusion.shape), where=totals > 0)
    cells = [(true, predicted) for true in range(count) for predicted in range(count)]
    texts = [f"{confusion[cell]:,}" if confusion[cell] else "" for cell in cells]
    figure = go.Figure(
        go.Heatmap(
            z=share,
            zmin=0,
            zmax=1,
            colorscale=[[0, "rgba(47,127,209,0.04)"], [0.15, "rgba(47,127,209,0.45)"], [1, "rgb(20,80,160)"]],
            showscale=False,
            hoverinfo="skip",
            xgap=2,
            ygap=2,
        )
    )
    figure.add_scatter(
        x=[predicted for _, predicted in cells],
        y=[true for true, _ in cells],
        mode="markers+text" if count <= 20 else "markers",
        text=texts,
        textfont={"size": 11, "color": ["#ffffff" if share[cell] > 0.12 else "#7f8894" for cell in cells]},
        marker={"symbol": "square", "size": 30, "opacity": 0},
        customdata=cells,
        hovertext=[
            f"{classes[true]} predicted as {classes[predicted]}: {confusion[true, predicted]:,}"
            f" ({share[true, predicted]:.1%} of {classes[true]})"
            for true, predicted in cells
        ],
        hoverinfo="text",
        showlegend=False,
    )
    ticks = {"tickvals": list(range(count)), "ticktext": list(classes), "showgrid": False, "zeroline": False}
    figure.update_layout(
        height=max(320, 60 + 38 * min(count, 20)),
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        xaxis={**ticks, "title": {"text": "Predicted"}, "automargin": True, "range": [-0.5, count - 0.5]},
        yaxis={**ticks, "title": {"text": "True"}, "automargin": True, "range": [count - 0.5, -0.5]},
        dragmode=False,
    )
    return figure
