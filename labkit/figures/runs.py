"""Figures of runs: curves over the steps, the workers of a cluster, and several runs beside each other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.curves import Curve, Curves, moving_average
from labkit.analysis.inference import mean_interval
from labkit.analysis.results import MEASURES, Group, title_of
from labkit.figures.style import GREY, MARK, OKABE_ITO, TEST, TRAIN, VALIDATION, color_of, drawing, shown_name
from labkit.plurals import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.experiments.range_test import RangeTest
    from labkit.experiments.replicas import LayoutLosses, ReplicaComparison


def training_curves(curves: Curves, *, smoothing: float = 0.9) -> "Figure":
    """Draw loss, accuracy, learning rate and examples per second over the steps of a run.

    Training steps are drawn as a faint line, and their moving average as a strong one. Dotted vertical lines
    mark where the run was resumed. Crosses at the upper edge mark steps whose value is NaN or infinite.

    Args:
        curves: of ``labkit.analysis.curves.read_curves``.
        smoothing: weight of the past in the moving average, 0 ≤ smoothing < 1; 0 draws the values only.
    """
    numbers = len(curves.curve("train", "mean_absolute_error")) > 0
    panels = (
        ("loss", "Loss", "in standard units" if numbers else "mean of the examples"),
        ("mean_absolute_error", "Mean absolute error", "in the unit of the labels")
        if numbers
        else ("accuracy", "Accuracy", "share of examples"),
        ("learning_rate", "Learning rate", "learning rate"),
        ("examples_per_second", "Speed", "examples per second"),
    )
    with drawing(
        9.5, 5.6, f"Loss, {panels[1][1].lower()}, learning rate and examples per second over training steps"
    ) as figure:
        for axis, (name, title, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
            weight = 0.0 if name == "learning_rate" else smoothing
            _draw_training(axis, curves.curve("train", name), weight)
            _draw_evaluations(axis, curves, name)
            for number, point in enumerate(curves.resume_points):
                named = {} if number else {"label": "resumed"}
                axis.axvline(point.step, color=GREY, linestyle=":", linewidth=1, **named)
            axis.set(title=title, ylabel=label)
            axis.grid(axis="y")
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
    not_finite = curve.not_finite
    if len(not_finite):
        edge = axis.get_xaxis_transform()
        heights = np.full(len(not_finite), 0.97)
        axis.plot(not_finite, heights, "x", color=MARK, transform=edge, label="NaN or infinite")


def _draw_evaluations(axis: "Axes", curves: Curves, name: str) -> None:
    for split, color, marker in (("validation", VALIDATION, "o-"), ("test", TEST, "D")):
        curve = curves.curve(split, name)
        if len(curve) and name in ("loss", "accuracy", "mean_absolute_error"):
            axis.plot(
                curve.step, curve.value, marker, color=color, markersize=4.5, linewidth=1.2, label=split
            )


MAX_NAME = 44  # letters of a configuration's name in the figure


def run_results(
    groups: Sequence[Group], measure: str, curves: Mapping[str, Curve], *, label: str = "validation accuracy"
) -> Any:
    """Draw a curve for each run, and one result of every run by configuration.

    At the right, small markers are runs; where a configuration has several, the large marker is the mean and
    the bar its 95 % t interval. Configurations have a colour each, up to seven.

    Args:
        groups: the configurations.
        measure: of ``labkit.analysis.results.MEASURES``.
        curves: of the runs, by their labels.
        label: what the curves are.
    """
    runs = counted(sum(len(group.results) for group in groups), "run")
    title = title_of(measure, groups)
    alt = f"{label.capitalize()} of {runs} over the steps, and {title.lower()} of each configuration"
    with drawing(9.5, max(3.2, 1.6 + 0.34 * len(groups)), alt) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        for number, group in enumerate(groups):
            _draw_curves(left, group, curves, _color(number, len(groups)))
        left.set(title=label.capitalize(), xlabel="step")
        left.grid(axis="y")
        _draw_results(right, groups, measure)
        unit = MEASURES[measure].unit
        several = any(len(group.values(measure)) > 1 for group in groups)
        right.set(title=title, xlabel=f"{unit}; bar: 95 % interval of the mean" if several else unit)
    return figure


def _color(number: int, count: int) -> str:
    return OKABE_ITO[number] if count <= len(OKABE_ITO) else GREY


def _draw_curves(axis: "Axes", group: Group, curves: Mapping[str, Curve], color: str) -> None:
    for result in group.results:
        curve = curves.get(result.label)
        if curve is not None and len(curve):
            finite = np.where(np.isfinite(curve.value), curve.value, np.nan)
            marker = "o" if len(curve) < 30 else None
            axis.plot(
                curve.step, finite, color=color, linewidth=1.1, marker=marker, markersize=2.5, alpha=0.8
            )


def _draw_results(axis: "Axes", groups: Sequence[Group], measure: str) -> None:
    scale = 100 if MEASURES[measure].unit == "percent" else 1
    for number, group in enumerate(groups):
        values = scale * np.array(group.values(measure))
        color = _color(number, len(groups))
        if len(values) > 1:
            found = mean_interval(values)
            axis.plot(values, np.full(len(values), number), "o", color=color, markersize=3.5, alpha=0.5)
            axis.plot([found.low, found.high], [number, number], color=color, linewidth=1.6)
            axis.plot(found.mean, number, "D", color=color, markersize=6)
        elif len(values):
            axis.plot(values, [number], "o", color=color, markersize=6)
    names = [group.title for group in groups]
    axis.set_yticks(range(len(names)), [shown_name(name, MAX_NAME) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.yaxis.tick_right()
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x")


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
    alt = "Loss over steps on each layout of devices and processes, and the difference to the first layout"
    with drawing(max(6.0, 4.8 * len(parts)), 5.6, alt) as figure:
        axes = figure.subplots(2, len(parts), squeeze=False, sharex=True, sharey="row")
        for (upper, lower), part in zip(axes.T, parts, strict=True):
            for number, (name, losses) in enumerate(part.losses.items()):
                _draw(upper, number, name, losses, later=len(part.losses) - 1 - number)
            upper.set_title(part.title)
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
        color=color_of(number),
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


PAUSE_SECONDS = 60.0  # a longer gap between two rows of a worker, which writes one a second, is a pause
SHARES = (
    ("compute_fraction", "compute", TRAIN),
    ("communication_fraction", "communication", VALIDATION),
    ("input_wait_fraction", "input and waiting", GREY),
)
MAX_WORKERS_IN_LEGEND = 8


def worker_throughput(workers: Mapping[str, Sequence[Mapping[str, Any]]], *, over: str = "time") -> "Figure":
    """Draw the examples per second of each worker of a cluster, and how each spent its time.

    Args:
        workers: rows of each worker by its name, of
            ``labkit.run_directory.worker_metrics.read_worker_metrics``.
        over: the horizontal axis, ``time`` or ``step``. Time leaves out pauses of more than a minute.

    Raises ValueError if there is no row.
    """
    if not any(workers.values()):
        raise ValueError("no row of a worker to draw; give at least one")
    names = [name for name, rows in workers.items() if rows]
    alt = "Examples per second of each worker, and how it spent its time"
    with drawing(9.5, max(2.9, 0.42 * len(names) + 1.5), alt) as figure:
        rates, shares = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_rates(rates, {name: workers[name] for name in names}, over)
        _draw_shares(shares, {name: workers[name] for name in names})
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in rows], np.float64)


def _draw_rates(axis: "Axes", workers: Mapping[str, Sequence[Mapping[str, Any]]], over: str) -> None:
    ends = np.unique(np.concatenate([_column(rows, "wall_time") for rows in workers.values()]))
    gaps = np.diff(ends, prepend=ends[0])
    time = np.cumsum(np.where(gaps > PAUSE_SECONDS, 0.0, gaps))
    unit = "seconds" if time[-1] < 120 else "minutes"
    time /= 60 if unit == "minutes" else 1
    for number, (name, rows) in enumerate(workers.items()):
        wall_time, rate = _column(rows, "wall_time"), _column(rows, "examples_per_second")
        step = _column(rows, "step")
        x = step if over == "step" else time[np.searchsorted(ends, wall_time)]
        breaks = np.flatnonzero((np.diff(wall_time) > PAUSE_SECONDS) | (np.diff(step) < 0)) + 1
        axis.plot(
            np.insert(x, breaks, np.nan),
            np.insert(rate, breaks, np.nan),
            color=color_of(number),
            # Synchronous workers have the same speed. Earlier lines are wider, so that none hides another.
            linewidth=max(1.2, 3.2 - number),
            marker="o" if len(rows) == 1 else None,
            label=name,
        )
    if over != "step":
        for pause in time[gaps > PAUSE_SECONDS]:
            axis.axvline(pause, color=GREY, linestyle=":", linewidth=1)
    axis.set(title="Speed of each worker", ylabel="examples per second")
    axis.set_xlabel("step" if over == "step" else f"{unit} of training")
    axis.set_ylim(bottom=0)
    axis.grid(axis="y")
    if len(workers) <= MAX_WORKERS_IN_LEGEND:
        axis.legend(loc="best")


def _draw_shares(axis: "Axes", workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    labels, means = [], []
    for name, rows in workers.items():
        seconds = _column(rows, "steps") / _column(rows, "examples_per_second")  # up to a constant factor
        # Communication that isn't measured counts as computing.
        known = (np.nan_to_num(_column(rows, share)) for share, _, _ in SHARES)
        means.append([np.average(values, weights=seconds) for values in known])
        rate = np.average(_column(rows, "examples_per_second"), weights=seconds)
        labels.append(f"{name}\n{rate:,.0f} examples/s")
    positions, left = np.arange(len(labels)), np.zeros(len(labels))
    for (name, label, color), share in zip(SHARES, np.transpose(means), strict=True):
        if any(np.isnan(_column(rows, name)).any() for rows in workers.values()):
            label += " (not measured)"
        bars = axis.barh(positions, share, left=left, color=color, height=0.6, label=label)
        texts = [f"{part:.0%}" if part >= 0.08 else "" for part in share]
        axis.bar_label(bars, texts, label_type="center", fontsize=8, color="white")
        left += share
    axis.set_yticks(positions, labels)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), title="How it spent its time", xlabel="share of the time")
    axis.set_xticks(np.linspace(0, 1, 5), [f"{share:.0%}" for share in np.linspace(0, 1, 5)])
    axis.tick_params(axis="y", length=0)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3, handlelength=1, columnspacing=1)


def range_test(test: "RangeTest") -> "Figure":
    """Draw the losses of a learning-rate range test (``labkit.find_learning_rate``) over its rates."""
    with drawing(7.0, 3.5, "Loss over the learning rate, which grows by a factor at each step") as figure:
        axis = figure.subplots()
        axis.plot(test.rates, test.losses, ".", color=TRAIN, markersize=3, alpha=0.5, label="each step")
        axis.plot(test.rates, test.smoothed, color=TRAIN, label="smoothed")
        if test.suggestion is not None:
            label = f"suggested, {test.suggestion:g}"
            axis.axvline(test.suggestion, color=VALIDATION, linestyle="--", label=label)
        start, lowest = test.losses[0], test.losses.min()
        top = min(test.losses.max(), start + 2 * abs(start - lowest))
        axis.set(title="Learning-rate range test", xscale="log", xlabel="learning rate", ylabel="loss")
        axis.set_ylim(lowest - 0.05 * (top - lowest), top + 0.05 * (top - lowest or 1))
        axis.grid(axis="y")
        axis.legend()
    return figure


def loss_curves(losses: dict[str, np.ndarray], *, smoothing: int = 5) -> "Figure":
    """Draw training losses over steps.

    Args:
        losses: [steps] by the name of the run.
        smoothing: steps of which each point is the mean, where there are as many before it.
    """
    styles = ("-", "--", "-.", ":")
    alt = f"Training loss over steps of {', '.join(losses)}"
    with drawing(7.0, 4.0, alt) as figure:
        axis = figure.subplots()
        for number, (name, values) in enumerate(losses.items()):
            sums = np.cumsum(values)
            width = np.minimum(np.arange(1, len(values) + 1), smoothing)
            before = np.concatenate([np.zeros(smoothing), sums])[: len(values)]
            axis.plot(
                np.arange(1, len(values) + 1),
                (sums - before) / width,
                styles[number % len(styles)],
                color=color_of(number),
                label=name,
            )
        axis.grid(axis="y")
        smoothed = f", mean of the last {smoothing} steps" if smoothing > 1 else ""
        axis.set(xlabel="step", ylabel=f"training loss (nats){smoothed}")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
