"""The figure of one training on several layouts of devices and processes."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.plots.style import GREY, OKABE_ITO, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.analysis.replicas import ReplicaComparison

__all__ = ["replica_curves"]


def replica_curves(*comparisons: "ReplicaComparison", bound: float = 1e-5) -> "Figure":
    """Draw the losses of one training on several layouts, and below them their differences.

    The differences have a logarithmic scale, on which a difference of 0 is drawn at the lower edge.

    Args:
        comparisons: of ``labkit.analysis.replicas.compare_replicas``; each gets a column.
        bound: a difference in nats, marked by a dotted line.

    Raises ValueError if no comparison is given.
    """
    if not comparisons:
        raise ValueError("no comparison to draw; give at least one")
    differences = [values for comparison in comparisons for values in comparison.differences.values()]
    found = np.concatenate([[bound], *differences])
    floor = 10 ** np.floor(np.log10(found[found > 0].min()) - 0.5)
    with styled():
        alt = (
            "Loss over steps on each layout of devices and processes, and the difference to the first layout"
        )
        figure = new_figure(max(6.0, 5.2 * len(comparisons)), 5.4, alt)
        axes = figure.subplots(2, len(comparisons), squeeze=False, sharex="col", sharey="row")
        for (upper, lower), comparison in zip(axes.T, comparisons, strict=True):
            _draw_losses(upper, comparison)
            _draw_differences(lower, comparison, floor, bound)
        axes[0, 0].set_ylabel("cross-entropy (nats)")
        axes[1, 0].set_ylabel("difference (nats)")
        axes[1, 0].set_ylim(bottom=floor)
    return figure


def _steps(losses: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.arange(1, len(losses) + 1)


def _draw_losses(axis: "Axes", comparison: "ReplicaComparison") -> None:
    for number, (name, losses) in enumerate(comparison.losses.items()):
        # The curves nearly coincide. Earlier ones are drawn wider, so that none hides another.
        width = 1.2 + 1.4 * (len(comparison.losses) - 1 - number)
        color = OKABE_ITO[number % len(OKABE_ITO)]
        axis.plot(_steps(losses), losses, color=color, linewidth=width, label=name)
    axis.set_title(comparison.title.replace(", batch statistics", ",\nbatch statistics"))
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    axis.legend(loc="upper right", frameon=True, framealpha=0.85, edgecolor="none")


def _draw_differences(axis: "Axes", comparison: "ReplicaComparison", floor: float, bound: float) -> None:
    for number, (name, values) in enumerate(comparison.differences.items(), 1):
        color = OKABE_ITO[number % len(OKABE_ITO)]
        axis.plot(_steps(values), np.maximum(values, floor), ".-", color=color, linewidth=1, label=name)
    axis.axhline(bound, color=GREY, linestyle=":", linewidth=1)
    axis.annotate(f"{bound:g}", (1, bound), xycoords=axis.get_yaxis_transform(), ha="right", va="bottom")
    axis.set(yscale="log", xlabel="step", title=f"|loss − loss of {comparison.reference}|")
    axis.grid(axis="y")
    axis.set_axisbelow(True)
