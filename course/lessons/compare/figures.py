"""The figures of lesson 08. Accuracies are given from 0 to 1 and drawn in percent."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.plots import draw_curves
from labkit.figures.style import GREY, MARK, OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course.lessons.compare.trials import Trial
    from labkit.analysis.inference import Discordance, Interval


def intervals(found: Mapping[str, "Interval"]) -> "Figure":
    """Draw intervals of a difference, one in each row; those that contain zero in grey."""
    with drawing(
        8.4, 0.9 + 0.45 * len(found), "; ".join(f"{name}: {i}" for name, i in found.items())
    ) as figure:
        axis = figure.add_subplot()
        for row, interval in enumerate(found.values()):
            color = GREY if interval.contains_zero else OKABE_ITO[0]
            axis.plot([100 * interval.low, 100 * interval.high], [row, row], color=color, linewidth=3)
            axis.plot(100 * interval.mean, row, "o", color=color, markersize=8)
        axis.axvline(0, color=MARK, linewidth=1)
        axis.set_yticks(range(len(found)), list(found))
        axis.set(xlabel="difference in accuracy (points); 95 % interval", ylim=(len(found) - 0.5, -0.5))
        axis.grid(axis="x")
    return figure


def discordance(result: "Discordance", both_right: int, both_wrong: int, names: Sequence[str]) -> "Figure":
    """Draw how many images both, one or none of two classifiers get right."""
    counts = (both_right, result.only_first, result.only_second, both_wrong)
    labels = ("both right", f"only {names[0]}", f"only {names[1]}", "both wrong")
    alt = ", ".join(f"{label}: {count} images" for label, count in zip(labels, counts, strict=True))
    with drawing(8.4, 2.2, alt) as figure:
        axis = figure.add_subplot()
        left = 0
        for label, count, color in zip(labels, counts, ("#d1d5db", *OKABE_ITO[:2], "#9ca3af"), strict=True):
            axis.barh(0, count, left=left, color=color, label=f"{label}: {count}")
            left += count
        axis.set(
            xlabel="test images", xlim=(0, left), title="Only the coloured images can tell the two apart"
        )
        axis.set_yticks([])
        figure.legend(ncols=4, loc="outside lower center")
    return figure


def sweep(trials: Sequence["Trial"], compared: Sequence["Trial"]) -> "Figure":
    """Draw test accuracy over the learning rate for each recipe; rings mark the trials of ``compared``."""
    rates = sorted({trial.learning_rate for trial in trials})
    accuracies = {
        recipe: [100 * trial.test for rate in rates for trial in trials if trial[:2] == (recipe, rate)]
        for recipe in dict.fromkeys(trial.recipe for trial in trials)
    }
    figure = draw_curves(
        rates, accuracies, xscale="log", xlabel="learning rate (log)", ylabel="test accuracy (%)"
    )
    ringed = [(trial.learning_rate, 100 * trial.test) for trial in compared]
    ring: dict[str, Any] = {"color": "none", "edgecolors": MARK, "s": 225, "linewidths": 1.8}
    figure.axes[0].scatter(*zip(*ringed, strict=True), label="what was compared", zorder=3, **ring)
    figure.axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return figure


def bias(found: Mapping[int, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> "Figure":
    """Draw the accuracy that the best of k reports, and the one on fresh images, over k.

    Args:
        found: (reported, fresh), each [k], by the number of images that the choice was made on.
    """
    alt = "; ".join(
        f"chosen on {count} images: reported {100 * a[-1]:.1f}, fresh {100 * b[-1]:.1f} percent"
        for count, (a, b) in found.items()
    )
    with drawing(9.0, 3.4, alt) as figure:
        axes = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axis, (count, (reported, fresh)) in zip(axes, found.items(), strict=True):
            k = np.arange(1, len(reported) + 1)
            axis.plot(k, 100 * reported, "s-", color=OKABE_ITO[1], label="on the images of the choice")
            axis.plot(k, 100 * fresh, "o-", color=OKABE_ITO[0], label="on fresh images")
            axis.fill_between(k, 100 * fresh, 100 * reported, color=OKABE_ITO[1], alpha=0.15)
            axis.set(title=f"Best of k, chosen on {count:,} images", xlabel="k")
            axis.grid(axis="y")
        axes[0].set_ylabel("accuracy of the chosen one (%)")
        axes[0].legend(loc="upper left")
    return figure
