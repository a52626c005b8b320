"""The figures of lesson 08. Accuracies are given from 0 to 1 and drawn in percent."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.figures.style import GREY, MARK, OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course.lessons.compare.trials import Trial
    from labkit.analysis.inference import Discordance, Interval

MARKERS = "osD^"


def seed_curves(trials: Sequence["Trial"]) -> "Figure":
    """Draw the loss of each trial over the steps, smoothed, and its test accuracy."""
    width = 10  # steps of which each point is the mean
    scores = ", ".join(f"{100 * trial.test:.1f}" for trial in trials)
    with drawing(9.0, 3.3, f"Loss curves of {len(trials)} seeds; test accuracies {scores} percent") as figure:
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        for number, trial in enumerate(trials):
            smooth = np.convolve(trial.losses, np.ones(width) / width, "valid")
            color = OKABE_ITO[number % len(OKABE_ITO)]
            left.plot(np.arange(width, width + len(smooth)), smooth, color=color, label=f"seed {trial.seed}")
            right.plot(trial.seed, 100 * trial.test, "o", color=color)
        left.set(title="Training", xlabel="step", ylabel=f"loss, mean of {width} steps (nats)")
        right.set(title="Result", xlabel="seed", ylabel="test accuracy (%)")
        right.set_xticks([trial.seed for trial in trials])
        right.margins(0.15)
        left.legend(ncols=2)
        for axis in (left, right):
            axis.grid(axis="y")
    return figure


def pairs(first: Sequence["Trial"], second: Sequence["Trial"]) -> "Figure":
    """Draw the test accuracies of two recipes, one line for each seed, and the differences."""
    found = 100 * np.array([a.test - b.test for a, b in zip(first, second, strict=True)])
    alt = f"Accuracies of {first[0].recipe} and {second[0].recipe}, paired by seed; differences in points: "
    with drawing(9.0, 3.4, alt + ", ".join(f"{value:+.1f}" for value in found)) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for number, (a, b) in enumerate(zip(first, second, strict=True)):
            color, marker = OKABE_ITO[number % len(OKABE_ITO)], MARKERS[number % 4]
            left.plot([0, 1], [100 * a.test, 100 * b.test], marker + "-", color=color, label=f"seed {a.seed}")
            right.plot(100 * (a.test - b.test), a.seed, marker, color=color)
        left.set(title="The same seed is a pair", ylabel="test accuracy (%)", xlim=(-0.2, 1.2))
        left.set_xticks([0, 1], [first[0].recipe, second[0].recipe])
        left.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        right.axvline(0, color=GREY, linewidth=1)
        right.set(
            title="Differences", xlabel=f"{first[0].recipe} − {second[0].recipe} (points)", ylabel="seed"
        )
        right.set_yticks([a.seed for a in first])
        right.margins(0.2)
        left.grid(axis="y")
        right.grid(axis="x")
    return figure


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


def coverage(counts: Sequence[int], found: Mapping[str, NDArray[np.float64]]) -> "Figure":
    """Draw how often intervals contain the truth over the number of seeds, for each method."""
    alt = "; ".join(f"{name}: {100 * values[0]:.0f} % with {counts[0]}" for name, values in found.items())
    with drawing(6.4, 3.3, f"How often an interval contains the truth: {alt} seeds") as figure:
        axis = figure.add_subplot()
        axis.axhline(95, color=GREY, linestyle=":", label="promised: 95 %")
        for number, (name, values) in enumerate(found.items()):
            axis.plot(counts, 100 * values, MARKERS[number] + "-", color=OKABE_ITO[number], label=name)
        axis.set(xscale="log", xlabel="seeds (log)", ylim=(49, 100))
        axis.set_ylabel("intervals that contain\nthe true mean (%)")
        axis.set_xticks(list(counts), [str(count) for count in counts])
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend(loc="lower right")
    return figure


def detection(
    counts: Sequence[int], differences: Sequence[float], found: NDArray[np.float64], deviation: float
) -> "Figure":
    """Draw how often a true difference is found over the number of seeds, one curve for each difference.

    Args:
        counts: numbers of seeds.
        differences: in accuracy.
        found: fractions, [differences, counts].
        deviation: of the paired differences.
    """
    title = f"Standard deviation of the differences: {100 * deviation:.1f} points"
    with drawing(6.8, 3.4, f"How often a difference is found over the number of seeds. {title}") as figure:
        axis = figure.add_subplot()
        for number, (difference, values) in enumerate(zip(differences, found, strict=True)):
            label = f"{100 * difference:.1f} points" if difference else "none: a false alarm"
            axis.plot(counts, 100 * values, MARKERS[number % 4] + "-", color=OKABE_ITO[number], label=label)
        axis.axhline(80, color=GREY, linestyle=":", label="80 %, a common goal")
        axis.set(title=title, xscale="log", xlabel="seeds of each recipe (log)", ylim=(0, 103))
        axis.set_ylabel("comparisons whose interval\nexcludes zero (%)")
        axis.set_xticks(list(counts), [str(count) for count in counts])
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend(title="true difference", loc="center left", bbox_to_anchor=(1.0, 0.5))
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


def sweep(trials: Sequence["Trial"], compared: Sequence["Trial"] = ()) -> "Figure":
    """Draw test accuracy over the learning rate for each recipe; rings mark the trials of ``compared``."""
    best = {trial.recipe: 0.0 for trial in trials}
    for trial in trials:
        best[trial.recipe] = max(best[trial.recipe], 100 * trial.test)
    found = ", ".join(f"{name} at best {value:.1f} %" for name, value in best.items())
    with drawing(6.8, 3.4, f"Test accuracy over the learning rate: {found}") as figure:
        axis = figure.add_subplot()
        for number, name in enumerate(best):
            chosen = [trial for trial in trials if trial.recipe == name]
            axis.plot(
                [trial.learning_rate for trial in chosen],
                [100 * trial.test for trial in chosen],
                MARKERS[number] + "-",
                color=OKABE_ITO[number],
                label=name,
            )
        axis.plot(
            [trial.learning_rate for trial in compared],
            [100 * trial.test for trial in compared],
            "o",
            markersize=15,
            markerfacecolor="none",
            markeredgecolor=MARK,
            markeredgewidth=1.8,
            label="what was compared" if compared else None,
        )
        axis.set(xscale="log", xlabel="learning rate (log)", ylabel="test accuracy (%)")
        rates = sorted({trial.learning_rate for trial in trials})
        axis.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axis.minorticks_off()
        axis.margins(0.1)
        axis.grid(axis="y")
        axis.legend()
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
