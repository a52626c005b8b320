"""The figures of lesson 09."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from course.lessons.mistakes.measures import Reliability
from course.lessons.mistakes.noisy import ExampleHistory, hunt_scores
from labkit.analysis.predictions import forgetting_events
from labkit.analysis.slices import Slice
from labkit.figures import draw_heat
from labkit.figures.style import GREY, TRAIN, VALIDATION, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDS = ("value", "low", "high")  # of a slice


def reliability_diagram(results: Mapping[str, Reliability]) -> "Figure":
    """Draw accuracy over confidence for each of ``results``, by title; below, how many examples a bin has."""
    errors = ", ".join(f"{name}: error {result.error:.3f}" for name, result in results.items())
    with drawing(4.4 * len(results), 4.4, f"Accuracy of each bin of confidence; {errors}") as figure:
        axes = figure.subplots(2, len(results), height_ratios=(3, 1), sharex=True, squeeze=False)
        for (upper, lower), (name, result) in zip(axes.T, results.items(), strict=True):
            bars = {"width": np.diff(result.edges), "align": "edge", "edgecolor": "white"}
            right, gap = np.nan_to_num([result.accuracy, result.confidence - result.accuracy])
            upper.bar(result.edges[:-1], right, color=TRAIN, label="accuracy", **bars)
            bars |= {"facecolor": "none", "edgecolor": VALIDATION, "hatch": "///", "linewidth": 0}
            upper.bar(result.edges[:-1], gap, bottom=right, label="gap to the confidence", **bars)
            upper.plot([0, 1], [0, 1], color="#000000", linewidth=1, linestyle="--", label="perfect")
            upper.set(ylim=(0, 1), ylabel="share of right predictions")
            upper.set_title(f"{name}: calibration error {result.error:.3f}")
            upper.legend(loc="upper left")
            lower.stairs(result.counts, result.edges, fill=True, color=GREY)
            lower.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    return figure


def heat_maps(
    images: NDArray[np.uint8], titles: Sequence[str], maps: Mapping[str, Sequence[NDArray[np.float64]]]
) -> "Figure":
    """Draw images in the first row, and below each of ``maps`` by name, one for each image."""
    columns, rows = len(images), len(maps) + 1
    with drawing(1.55 * columns, 1.65 * rows, f"images and their maps: {', '.join(maps)}") as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for column, (image, title) in enumerate(zip(images, titles, strict=True)):
            axes[0, column].imshow(image.squeeze(), cmap="gray")
            axes[0, column].set(xticks=[], yticks=[])
            axes[0, column].set_title(title, fontsize=8, loc="center", fontweight="normal")
            for row, values in enumerate(maps.values(), 1):
                draw_heat(axes[row, column], image, values[column])
        axes[0, 0].set_ylabel("image")
        for row, name in enumerate(maps, 1):
            axes[row, 0].set_ylabel(name)
    return figure


def forgetting(history: ExampleHistory) -> "Figure":
    """Draw how many examples were forgotten how often, and their mean loss at the end."""
    events = forgetting_events(history.right)
    never = ~history.right.any(axis=0)
    names, groups = ["never\nlearned"], [never]
    for times in range(events.max() + 1):
        names.append(f"{times}×\nforgotten" if times else "never\nforgotten")
        groups.append(~never & (events == times))
    with drawing(8.4, 3.0, "examples by how often they were forgotten, and their loss at the end") as figure:
        left, right = figure.subplots(1, 2)
        bars = left.bar(names, [group.sum() for group in groups], color=TRAIN)
        left.bar_label(bars, padding=2, fontsize=8)
        left.set(ylabel="training examples", title="How often")
        losses = [float(history.losses[-1, group].mean()) if group.any() else 0.0 for group in groups]
        right.bar(names, losses, color=VALIDATION)
        right.set(ylabel="cross-entropy (nats)", title="Their mean loss at the end")
        for axis in (left, right):
            axis.tick_params(axis="x", length=0, labelsize=7)
    return figure


def hunt(score: NDArray[np.float64], flipped: NDArray[np.bool_], ranked: ArrayLike) -> "Figure":
    """Draw the scores of right and flipped labels, and precision and recall of the suspects.

    Args:
        score: of each example, float [n], in nats.
        flipped: which labels are wrong, bool [n].
        ranked: indices of suspects, the most suspicious first.
    """
    precision, recall = hunt_scores(ranked, flipped)
    with drawing(10, 3.1, "mean losses by label; precision and recall of suspects") as figure:
        left, right = figure.subplots(1, 2)
        bins = np.linspace(0, float(score.max()), 40)
        for mask, name, colour in ((~flipped, "right", TRAIN), (flipped, "flipped", VALIDATION)):
            left.hist(score[mask], bins, color=colour, alpha=0.75, label=f"{name} labels ({mask.sum():,})")
        left.set(yscale="log", xlabel="mean loss over the training (nats)", ylabel="examples")
        left.set_title("The losses")
        left.legend()
        looked = np.arange(1, len(precision) + 1)
        right.plot(looked, precision, color=TRAIN, label="precision: share of these\nthat were flipped")
        right.plot(looked, recall, color=VALIDATION, label="recall: share of the\nflipped among them")
        right.axvline(flipped.sum(), color=GREY, linewidth=1, linestyle=":", label="as many as were flipped")
        right.set(xlabel="suspects looked at", ylabel="share", ylim=(0, 1.02), title="The hunt")
        right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def slice_accuracies(slices: Sequence[Slice], accuracy: float, title: str) -> "Figure":
    """Draw the accuracy of slices with their 95 % intervals, and a line at the accuracy of all examples.

    The names and sizes of more than 20 slices aren't written: they don't fit.

    Args:
        slices: from top to bottom.
        accuracy: of all examples.
        title: of the figure.
    """
    names = [f"{part.name} ({part.count})" for part in slices] if len(slices) <= 20 else []
    with drawing(7.6, 0.9 + (0.26 if names else 0.09) * len(slices), title) as figure:
        axis = figure.subplots()
        for outside, colour, label in (
            (False, GREY, "may be chance"),
            (True, VALIDATION, "differs from all"),
        ):
            chosen = [row for row, part in enumerate(slices) if differs(part, accuracy) == outside]
            value, low, high = (np.array([getattr(slices[row], of) for row in chosen]) for of in ENDS)
            axis.errorbar(
                value, chosen, xerr=(value - low, high - value),
                fmt="o", color=colour, markersize=4, label=label if chosen else None,
            )  # fmt: skip
        axis.axvline(accuracy, color=TRAIN, linewidth=1.2, label=f"all images: {accuracy:.1%}")
        axis.set_yticks(range(len(names)), names)
        axis.set(xlabel="share of right predictions, with 95 % interval", title=title)
        axis.set(ylabel="" if names else "slices", ylim=(len(slices) - 0.4, -0.6))
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def differs(part: Slice, accuracy: float) -> bool:
    """Return whether ``accuracy`` is outside of the interval of a slice."""
    return not part.low <= accuracy <= part.high
