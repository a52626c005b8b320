"""The figure of one training on several layouts of devices and processes."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.notebook.plots.style import GREY, OKABE_ITO, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.experiments.replicas import LayoutLosses, ReplicaComparison

__all__ = ["replica_curves"]

MARKERS = "osD^vPX"  # so that layouts can be told apart where their curves coincide, and without colours


def replica_curves(comparison: "ReplicaComparison") -> "Figure":
    """Draw the losses of one training on several layouts, and below them their differences.

    Synchronized batch normalization and each replica's own statistics have a column each. The differences
    have a logarithmic scale, on which a difference of 0 is drawn at the lower edge. The tolerance is a dotted
    line.

    Args:
        comparison: of ``labkit.compare_replicas``.
    """
    parts = comparison.parts
    tolerance = parts[0].tolerance
    differences = [values for part in parts for values in part.differences.values()]
    found = np.concatenate([[tolerance], *differences])
    floor = 10 ** np.floor(np.log10(found[found > 0].min()) - 0.5)
    with styled():
        alt = (
            "Loss over steps on each layout of devices and processes, and the difference to the first layout"
        )
        figure = new_figure(max(6.0, 4.8 * len(parts)), 5.6, alt)
        axes = figure.subplots(2, len(parts), squeeze=False, sharex=True, sharey="row")
        for (upper, lower), part in zip(axes.T, parts, strict=True):
            _draw_losses(upper, part)
            _draw_differences(lower, part, floor)
        axes[0, 0].set_ylabel("loss (nats)")
        axes[1, 0].set_ylabel(f"difference to {parts[0].reference} (nats)")
        axes[1, 0].set_ylim(bottom=floor)
        handles, names = axes[0, 0].get_legend_handles_labels()
        legend = figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)))
        for line in legend.get_lines():
            line.set_linewidth(1.6)
        figure.suptitle(comparison.title, x=0.01, ha="left", fontsize=9, color="#374151")
    return figure


def _draw_losses(axis: "Axes", part: "LayoutLosses") -> None:
    for number, (name, losses) in enumerate(part.losses.items()):
        _draw(axis, number, name, losses, later=len(part.losses) - 1 - number)
    axis.set_title(part.title)


def _draw_differences(axis: "Axes", part: "LayoutLosses", floor: float) -> None:
    for number, (name, values) in enumerate(part.differences.items(), 1):
        _draw(axis, number, name, np.maximum(values, floor), later=len(part.differences) - number)
    axis.axhline(part.tolerance, color=GREY, linestyle=":", linewidth=1.2)
    axis.annotate(
        f"tolerance {part.tolerance:g}",
        (1, part.tolerance),
        xycoords=axis.get_yaxis_transform(),
        ha="right",
        va="bottom",
        color=GREY,
        fontsize=8,
    )
    axis.set(yscale="log", xlabel="step")


def _draw(axis: "Axes", number: int, name: str, values: np.ndarray, *, later: int) -> None:
    """Draw one layout's curve, wider if more of them come ``later``: where they coincide, each is seen."""
    steps = np.arange(1, len(values) + 1)
    axis.plot(
        steps,
        values,
        color=OKABE_ITO[number % len(OKABE_ITO)],
        linewidth=1.0 + later,
        marker=MARKERS[number % len(MARKERS)],
        # At other steps on each curve, so that no marker hides another.
        markevery=(number * 2, max(1, len(values) // 6)),
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        label=name,
    )
    axis.grid(axis="y")
    axis.set_axisbelow(True)
