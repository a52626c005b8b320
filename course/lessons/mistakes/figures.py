"""The figures of lesson 09."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from course.lessons.mistakes.calibration import Reliability
from course.lessons.mistakes.history import ExampleHistory, hunt_scores
from course.lessons.mistakes.slices import Slice
from labkit.analysis.predictions import forgetting_events
from labkit.figures import draw_heat
from labkit.figures.style import GREY, TEST, TRAIN, VALIDATION, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_diagram(results: Mapping[str, Reliability]) -> "Figure":
    """Draw accuracy over confidence for each of ``results``, by title; below, how many examples a bin has."""
    errors = ", ".join(f"{name}: error {result.error:.3f}" for name, result in results.items())
    with drawing(
        4.4 * len(results), 4.4, f"Reliability: accuracy of each bin of confidence; {errors}"
    ) as figure:
        axes = figure.subplots(2, len(results), height_ratios=(3, 1), sharex=True, squeeze=False)
        for (upper, lower), (name, result) in zip(axes.T, results.items(), strict=True):
            _draw_reliability(upper, result)
            upper.set_title(f"{name}: calibration error {result.error:.3f}")
            width = np.diff(result.edges)
            lower.bar(result.edges[:-1], result.counts, width, align="edge", color=GREY, edgecolor="white")
            lower.set(xlabel="confidence", ylabel="images", xlim=(0, 1))
    return figure


def _draw_reliability(axis: "Axes", result: Reliability) -> None:
    width = np.diff(result.edges)
    shown = np.nan_to_num(result.accuracy)
    axis.bar(result.edges[:-1], shown, width, align="edge", color=TRAIN, edgecolor="white", label="accuracy")
    gap = np.nan_to_num(result.confidence - result.accuracy)
    axis.bar(
        result.edges[:-1], gap, width, bottom=shown, align="edge", facecolor="none", edgecolor=VALIDATION,
        hatch="///", linewidth=0, label="gap to the confidence",
    )  # fmt: skip
    axis.plot([0, 1], [0, 1], color="#000000", linewidth=1, linestyle="--", label="perfect")
    axis.set(ylim=(0, 1), ylabel="share of right predictions")
    axis.legend(loc="upper left")


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


def occlusion_frame(
    image: NDArray[np.uint8], heat: NDArray[np.float64], patch: int, name: str, limit: float
) -> "Figure":
    """Draw an image with the covering square, and the map that it makes; ``limit``: of the colours."""
    with drawing(6.4, 2.9, f"fall of the probability of {name}, covered by {patch}×{patch} pixels") as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
        shown = image.copy()
        shown[:patch, :patch] = image.mean(axis=(0, 1)).round()
        left.imshow(shown.squeeze(), cmap="gray")
        left.set(xticks=[], yticks=[], title=f"{patch}×{patch} pixels covered", xlabel=f"predicted: {name}")
        right.set_title("where covering matters")
        figure.colorbar(
            draw_heat(right, image, heat, limit), ax=right, label=f"fall of the probability\nof {name}"
        )
    return figure


def learning_of_flipped(history: ExampleHistory, right_labels: NDArray[np.int32]) -> "Figure":
    """Draw how the examples with right and with flipped labels are learned.

    Args:
        history: of a training.
        right_labels: before the flips, int [n].
    """
    flipped = history.labels != right_labels
    as_true = history.predicted == right_labels
    with drawing(8.2, 3.1, "share of examples predicted as their label says, over training steps") as figure:
        axis = figure.subplots()
        axis.plot(
            history.steps,
            history.right[:, ~flipped].mean(axis=1),
            "o-",
            color=TRAIN,
            label="right labels: as the label says",
        )
        axis.plot(
            history.steps,
            as_true[:, flipped].mean(axis=1),
            "s-",
            color=TEST,
            label="flipped labels: as the image shows",
        )
        axis.plot(
            history.steps,
            history.right[:, flipped].mean(axis=1),
            "D-",
            color=VALIDATION,
            label="flipped labels: as the label says",
        )
        axis.set(
            xlabel="step",
            ylabel="share of the examples",
            ylim=(0, 1),
            title="What the network learns of each kind",
        )
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        axis.grid(axis="y")
    return figure  # fmt: skip


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
    with drawing(
        10, 3.1, "mean losses of right and flipped labels; precision and recall of suspects"
    ) as figure:
        left, right = figure.subplots(1, 2)
        bins = np.linspace(0, float(score.max()), 40)
        for mask, name, colour in (
            (~flipped, "right labels", TRAIN),
            (flipped, "flipped labels", VALIDATION),
        ):
            left.hist(score[mask], bins, color=colour, alpha=0.75, label=f"{name} ({mask.sum():,})")
        left.set(
            yscale="log", xlabel="mean loss over the training (nats)", ylabel="examples", title="The losses"
        )
        left.legend()
        looked = np.arange(1, len(precision) + 1)
        right.plot(
            looked, precision, color=TRAIN, label="precision: share of these\nsuspects that were flipped"
        )
        right.plot(
            looked, recall, color=VALIDATION, label="recall: share of the\nflipped that are among them"
        )
        right.axvline(flipped.sum(), color=GREY, linewidth=1, linestyle=":", label="as many as were flipped")
        right.set(xlabel="suspects looked at", ylabel="share", ylim=(0, 1.02), title="The hunt")
        right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure  # fmt: skip


def slice_accuracies(slices: Sequence[Slice], accuracy: float, title: str, names: bool = True) -> "Figure":
    """Draw the accuracy of slices with their 95 % intervals, and a line at the accuracy of all examples.

    Args:
        slices: from top to bottom.
        accuracy: of all examples.
        title: of the figure.
        names: whether to write the names and sizes of the slices; many of them don't fit.
    """
    places = np.arange(len(slices))
    low, high = np.array([part.interval for part in slices]).T
    shares = np.array([part.accuracy for part in slices])
    outside = np.array([part.differs_from(accuracy) for part in slices])
    with drawing(7.6, 0.9 + (0.26 if names else 0.09) * len(slices), title) as figure:
        axis = figure.subplots()
        for mask, colour, label in (
            (~outside, GREY, "may be chance"),
            (outside, VALIDATION, "differs from all"),
        ):
            if mask.any():
                bars = (shares[mask] - low[mask], high[mask] - shares[mask])
                axis.errorbar(
                    shares[mask], places[mask], xerr=bars, fmt="o", color=colour, markersize=4, label=label
                )
        axis.axvline(accuracy, color=TRAIN, linewidth=1.2, label=f"all images: {accuracy:.1%}")
        axis.set_yticks(
            places if names else [], [f"{part.name} ({part.total})" for part in slices] if names else []
        )
        axis.set(xlabel="share of right predictions, with 95 % interval", title=title)
        if not names:
            axis.set_ylabel("slices")
        axis.set_ylim(len(slices) - 0.4, -0.6)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure  # fmt: skip
