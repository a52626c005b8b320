"""How the prediction for one image changed from checkpoint to checkpoint."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.ask.client import Moment
from app.charts.board import PALETTE

__all__ = ["history_figure", "learned_in_words"]


def learned_in_words(steps: Sequence[int], right: Sequence[bool]) -> str:
    """Return a sentence on when an image was learned and forgotten.

    Args:
        steps: of the checkpoints, ascending.
        right: whether the prediction was right at each.
    """
    if not steps:
        return "No checkpoint could be read."
    changes = [
        f"{'learned' if now else 'forgotten'} at step {step:,}"
        for step, before, now in zip(steps, [False, *right], right, strict=False)
        if before != now
    ]
    if not changes:
        return f"It was wrong at every kept checkpoint, from step {steps[0]:,} to {steps[-1]:,}."
    if len(changes) == 1 and right[0]:
        return f"It was right at every kept checkpoint, from step {steps[0]:,} to {steps[-1]:,}."
    first = (
        f"Right from the first kept checkpoint, step {steps[0]:,}" if right[0] else changes[0].capitalize()
    )
    return ", ".join([first, *changes[1:]]) + "."


def history_figure(moments: Sequence[Moment], classes: Sequence[str], drawn: NDArray[np.intp]) -> go.Figure:
    """Draw the probabilities of the classes ``drawn`` at each checkpoint that could be read."""
    known = [(moment.step, moment.probabilities) for moment in moments if moment.probabilities is not None]
    figure = go.Figure()
    for place, number in enumerate(drawn):
        figure.add_scatter(
            x=[step for step, _ in known],
            y=[float(shares[number]) for _, shares in known],
            name=_shown(classes[number]),
            mode="lines+markers",
            line={"color": PALETTE[place % len(PALETTE)], "width": 2},
            hovertemplate="step %{x:,}: %{y:.1%}",
        )
    figure.update_layout(
        height=260,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        xaxis={"title": {"text": "Step"}, "automargin": True},
        yaxis={
            "title": {"text": "Probability"},
            "tickformat": ".0%",
            "range": [-0.03, 1.03],
            "automargin": True,
        },
        hovermode="x",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        showlegend=True,
    )
    return figure


def _shown(name: str) -> str:
    """Return a name that Plotly shows as it is: it reads some HTML, and knows these two entities."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
