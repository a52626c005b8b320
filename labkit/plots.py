"""Figures of a run and of its predictions. Matplotlib is loaded when the first one is drawn.

Each function returns a ``matplotlib.figure.Figure`` that belongs to no window and no pyplot state: it can be
saved from anywhere, and shows itself in a notebook when it is the last value of a cell.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.analysis.curves import Curve, Curves, moving_average
from labkit.comparison_plot import comparison
from labkit.figures import (
    GREY,
    MARK,
    OKABE_ITO,
    SHOWN_PER_INCH,
    TEST,
    TRAIN,
    VALIDATION,
    new_figure,
    png,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions
    from labkit.analysis.replicas import ReplicaComparison

__all__ = [
    "SHOWN_PER_INCH",
    "class_accuracy",
    "comparison",
    "confusion_matrix",
    "image_grid",
    "message",
    "png",
    "prediction_grid",
    "replica_curves",
    "training_curves",
    "worker_throughput",
    "wrong_predictions",
]

MAX_CLASSES_WITH_COUNTS = 20


# ---- images --------------------------------------------------------------------------------------------


def image_grid(
    images: NDArray[np.uint8], titles: Sequence[str] = (), rows: Sequence[str] = (), *, columns: int = 10
) -> "Figure":
    """Draw images side by side, line by line.

    Args:
        images: uint8 [n, height, width, channels], 1 or 3 channels.
        titles: one above each of the first ``len(titles)`` images.
        rows: one label left of each of the first lines.
        columns: images in a line.

    Raises ValueError where there is no image.
    """
    if not len(images):
        raise ValueError("no image to draw; give at least one")
    lines = -(-len(images) // columns)
    titled_lines = -(-len(titles) // columns)
    title_height = 0.15 * max((title.count("\n") + 1 for title in titles), default=0)
    width = 9.5
    height = width / columns * lines + title_height * titled_lines
    with styled():
        figure = new_figure(width, height, f"{len(images)} images")
        axes = figure.subplots(lines, columns, squeeze=False)
        for place, axis in enumerate(axes.flat):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if place < len(images):
                axis.imshow(images[place].squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            if place < len(titles):
                axis.set_title(titles[place], fontsize=8, loc="center", fontweight="normal")
        for axis, label in zip(axes[:, 0], rows, strict=False):
            axis.set_ylabel(label, fontsize=8)
    return figure


def wrong_predictions(predictions: "Predictions", count: int = 16, *, columns: int = 8) -> "Figure":
    """Draw the ``count`` most confident mistakes: true class, predicted class and its probability.

    Of several labels per image all that are true and all that are predicted.
    """
    places = predictions.select(wrong_only=True)[:count]
    if not len(places):
        return message("Not one prediction is wrong.")
    return prediction_grid(predictions, places, columns=columns)


def prediction_grid(predictions: "Predictions", places: ArrayLike, *, columns: int = 8) -> "Figure":
    """Draw the examples at ``places``, int [n], each titled with what it is and what it was taken for."""
    places = np.asarray(places)
    titles = []
    for place in places:
        true = predictions.names(predictions.has[place])
        predicted = predictions.names(predictions.given[place])
        if predictions.multi_label:
            titles.append("\n→ ".join(textwrap.fill(names, 20) for names in (true, predicted)))
        else:
            titles.append(f"{true}\n→ {predicted} {predictions.probabilities[place].max():.0%}")
    figure = image_grid(predictions.images[places], titles, columns=columns)
    for axis, place in zip(figure.axes, places, strict=False):
        axis.title.set_color(MARK if predictions.wrong[place] else TEST)
    return figure


def message(text: str) -> "Figure":
    """Draw a line of text where there is nothing else to draw."""
    with styled():
        figure = new_figure(6, 0.6, text)
        figure.text(0.5, 0.5, text, ha="center", va="center", color=GREY)
    return figure


# ---- curves --------------------------------------------------------------------------------------------


def training_curves(curves: Curves, *, smoothing: float = 0.9) -> "Figure":
    """Draw loss, accuracy, learning rate and examples per second over the steps of a run.

    Single training steps are faint, their moving average is strong. Dotted lines mark where the run was
    resumed, crosses at the upper edge the steps at which a value was NaN or infinite.

    Args:
        curves: of ``labkit.analysis.curves.read_curves``.
        smoothing: weight of the past in the moving average, 0 ≤ smoothing < 1.
    """
    panels = (
        ("loss", "Loss", "cross-entropy (nats)"),
        ("accuracy", "Accuracy", "share of examples"),
        ("learning_rate", "Learning rate", "learning rate"),
        ("examples_per_second", "Speed", "examples per second"),
    )
    with styled():
        figure = new_figure(
            9.5, 5.6, "Loss, accuracy, learning rate and examples per second over training steps"
        )
        for axis, (name, title, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
            weight = 0.0 if name == "learning_rate" else smoothing
            _draw_training(axis, curves.curve("train", name), weight)
            _draw_evaluations(axis, curves, name)
            _draw_seams(axis, curves)
            axis.set(title=title, ylabel=label)
            axis.grid(axis="y")
            axis.set_axisbelow(True)
            if name in ("learning_rate", "examples_per_second"):
                axis.set_ylim(bottom=0)
                axis.set_xlabel("step")
            if len(axis.get_legend_handles_labels()[1]) > 1:
                axis.legend()
    return figure


def _draw_training(axis: "Axes", curve: Curve, weight: float) -> None:
    if not len(curve):
        return
    finite = np.where(np.isfinite(curve.value), curve.value, np.nan)
    label = "train"
    if weight:
        axis.plot(curve.step, finite, color=TRAIN, alpha=0.25, linewidth=0.7)
        label = "train (moving average)"
    axis.plot(curve.step, moving_average(finite, weight), color=TRAIN, linewidth=1.6, label=label)
    lost = curve.not_finite
    if len(lost):
        edge = axis.get_xaxis_transform()
        axis.plot(lost, np.full(len(lost), 0.97), "x", color=MARK, transform=edge, label="NaN or infinite")


def _draw_evaluations(axis: "Axes", curves: Curves, name: str) -> None:
    for split, color, marker in (("validation", VALIDATION, "o-"), ("test", TEST, "D")):
        if name not in ("loss", "accuracy"):
            continue
        curve = curves.curve(split, name)
        if len(curve):
            axis.plot(
                curve.step, curve.value, marker, color=color, markersize=4.5, linewidth=1.2, label=split
            )


def _draw_seams(axis: "Axes", curves: Curves) -> None:
    for number, seam in enumerate(curves.seams):
        axis.axvline(seam.step, color=GREY, linestyle=":", linewidth=1, label=None if number else "resumed")


# ---- classes -------------------------------------------------------------------------------------------


def confusion_matrix(confusion: ArrayLike | None, classes: Sequence[str]) -> "Figure":
    """Draw how often each class was taken for which.

    Args:
        confusion: counts, int [true class, predicted class]; the shade is the share of the true class. None,
            where images have several labels, gives a line that says so.
        classes: names.

    Raises ValueError where the matrix isn't square with one row per class.
    """
    if confusion is None:
        return message("Images have several labels, each predicted for itself: no confusion matrix.")
    counts = np.asarray(confusion)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"confusion has shape {counts.shape}; allowed: {(len(classes), len(classes))}")
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(10.0, max(4.0, 0.5 * len(classes)))
    with styled():
        figure = new_figure(
            size + 1.2, size, "Confusion matrix: true classes in rows, predicted classes in columns"
        )
        axis = figure.subplots()
        shade = axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
        ticks = range(len(classes))
        axis.set_xticks(ticks, classes, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_yticks(ticks, classes)
        axis.set(xlabel="predicted class", ylabel="true class", title="Confusion matrix")
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        figure.colorbar(shade, ax=axis, label="share of the true class", shrink=0.8).outline.set_visible(
            False
        )
        if len(classes) <= MAX_CLASSES_WITH_COUNTS:
            for (true, predicted), count in np.ndenumerate(counts):
                if count:
                    dark = share[true, predicted] > 0.5
                    axis.text(
                        predicted, true, f"{count:,}", ha="center", va="center", fontsize=8,
                        color="white" if dark else "#1f2937",
                    )  # fmt: skip
    return figure


def class_accuracy(predictions: "Predictions") -> "Figure":
    """Draw the share of each class that is recognised, the best first, and the mean over all examples.

    Of several labels per image the recall of each, without a mean.
    """
    key, title = "accuracy", "Accuracy of each class"
    if predictions.multi_label:
        key, title = "recall", "Recall of each label"
    rows = [row for row in predictions.per_class() if row[key] is not None]
    rows.sort(key=lambda row: row[key])
    names, shares = [row["class"] for row in rows], [row[key] for row in rows]
    with styled():
        figure = new_figure(7, max(1.8, 0.28 * len(rows) + 0.8), title)
        axis = figure.subplots()
        bars = axis.barh(names, shares, color=TRAIN, height=0.7)
        axis.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3, fontsize=8)
        axis.set(xlim=(0, 1.1), xlabel="share recognised (recall)", title=title)
        axis.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
        axis.tick_params(axis="y", length=0)
        if len(predictions) and not predictions.multi_label:
            mean = 1 - float(predictions.wrong.mean())
            axis.axvline(mean, color=VALIDATION, linewidth=1.2)
            axis.set_title(f"{title} (line: all examples, {mean:.1%})")
    return figure


# ---- workers -------------------------------------------------------------------------------------------

PAUSE = 60.0  # seconds between two rows of a worker, which writes one a second, that are no training
SHARES = (
    ("compute_fraction", "compute", TRAIN),
    ("communication_fraction", "communication", VALIDATION),
    ("input_wait_fraction", "input and waiting", GREY),
)
MAX_WORKERS_IN_LEGEND = 8


def worker_throughput(workers: Mapping[str, Sequence[Mapping[str, Any]]], *, over: str = "time") -> "Figure":
    """Draw the examples per second of each worker of a cluster, and what each did with its time.

    Args:
        workers: rows of each by its name, of ``labkit.worker_metrics.read_worker_metrics``.
        over: ``time`` of training, without pauses of over a minute, or ``step``.

    Raises ValueError where there is no row.
    """
    if not any(workers.values()):
        raise ValueError("no row of a worker to draw; give at least one")
    names = [name for name, rows in workers.items() if rows]
    with styled():
        alt = "Examples per second of each worker, and its shares of computing, communicating and waiting"
        figure = new_figure(9.5, max(2.9, 0.42 * len(names) + 1.5), alt)
        rates, shares = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_rates(rates, {name: workers[name] for name in names}, over)
        _draw_shares(shares, {name: workers[name] for name in names})
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in rows], np.float64)


def _draw_rates(axis: "Axes", workers: Mapping[str, Sequence[Mapping[str, Any]]], over: str) -> None:
    ends = np.unique(np.concatenate([_column(rows, "wall_time") for rows in workers.values()]))
    gaps = np.diff(ends, prepend=ends[0])
    time = np.cumsum(np.where(gaps > PAUSE, 0.0, gaps))
    unit = "seconds" if time[-1] < 120 else "minutes"
    time /= 60 if unit == "minutes" else 1
    for number, (name, rows) in enumerate(workers.items()):
        wall_time, rate = _column(rows, "wall_time"), _column(rows, "examples_per_second")
        step = _column(rows, "step")
        x = step if over == "step" else time[np.searchsorted(ends, wall_time)]
        breaks = np.flatnonzero((np.diff(wall_time) > PAUSE) | (np.diff(step) < 0)) + 1
        axis.plot(
            np.insert(x, breaks, np.nan),
            np.insert(rate, breaks, np.nan),
            color=OKABE_ITO[number % len(OKABE_ITO)],
            # In step all have one rate: the first lines are wider, so that none hides another.
            linewidth=max(1.2, 3.2 - number),
            marker="o" if len(rows) == 1 else None,
            label=name,
        )
    if over != "step":
        for place in time[gaps > PAUSE]:
            axis.axvline(place, color=GREY, linestyle=":", linewidth=1)
    axis.set(title="Speed of each worker", ylabel="examples per second")
    axis.set_xlabel("step" if over == "step" else f"{unit} of training")
    axis.set_ylim(bottom=0)
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    if len(workers) <= MAX_WORKERS_IN_LEGEND:
        axis.legend(loc="lower right")


def _draw_shares(axis: "Axes", workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    labels, means = [], []
    for name, rows in workers.items():
        seconds = _column(rows, "steps") / _column(rows, "examples_per_second")  # times a constant
        means.append([np.average(_column(rows, share), weights=seconds) for share, _, _ in SHARES])
        rate = np.average(_column(rows, "examples_per_second"), weights=seconds)
        labels.append(f"{name}\n{rate:,.0f} examples/s")
    places, left = np.arange(len(labels)), np.zeros(len(labels))
    for (_, label, color), share in zip(SHARES, np.transpose(means), strict=True):
        bars = axis.barh(places, share, left=left, color=color, height=0.6, label=label)
        texts = [f"{part:.0%}" if part >= 0.08 else "" for part in share]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white")
        left += share
    axis.set_yticks(places, labels)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), title="What it did with its time", xlabel="share of the time")
    axis.set_xticks(np.linspace(0, 1, 5), [f"{share:.0%}" for share in np.linspace(0, 1, 5)])
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3, handlelength=1, columnspacing=1)


# ---- replicas ------------------------------------------------------------------------------------------


def replica_curves(*comparisons: "ReplicaComparison", bound: float = 1e-5) -> "Figure":
    """Draw losses of one training on several layouts over each other, and below how far they are apart.

    Args:
        comparisons: of ``labkit.analysis.replicas.compare_replicas``, a column for each.
        bound: marked in the lower row, in nats.

    The lower row's scale is logarithmic; a difference of 0 lies on its lower edge.
    Raises ValueError where there is nothing to draw.
    """
    if not comparisons:
        raise ValueError("no comparison to draw; give at least one")
    apart = [values for comparison in comparisons for values in comparison.differences.values()]
    found = np.concatenate([[bound], *apart])
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
        # They lie on each other: the first lines are wider, so that none hides another.
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
