"""The figure of a comparison of models: accuracy over training time and over multiply-adds."""

from typing import TYPE_CHECKING, Any

from labkit.analysis.inference import Spread
from labkit.experiments.comparison.read import Comparison, ModelMetrics
from labkit.figures.style import GREY, OKABE_ITO, color_of, drawing
from labkit.plurals import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

MARKERS = "os^D"  # the next marker is used when all colours are taken
# Positions to try for a label: its offset from the marker in points, right and up, and its alignment.
LABEL_POSITIONS = (
    (7, 5, "left", "bottom"),
    (-7, 5, "right", "bottom"),
    (7, -5, "left", "top"),
    (-7, -5, "right", "top"),
    (0, 14, "center", "bottom"),
    (0, -14, "center", "top"),
    (7, 18, "left", "bottom"),
    (7, -18, "left", "top"),
)


def comparison(comparison: Comparison) -> Any:
    """Draw the accuracy of each model over its training time, and over its multiply-adds.

    Large markers are means over the seeds, error bars are sample standard deviations, and small markers are
    single runs. Models without a finished run are left out.

    Args:
        comparison: of ``labkit.experiments.comparison.read.read_comparison``.
    """
    from matplotlib.ticker import LogLocator

    accuracy = comparison.accuracy
    models = [model for model in comparison.models if model.spread(accuracy) is not None]
    label = accuracy.replace("_", " ")
    of = counted(len(models), "model")
    alt = f"{label.capitalize()} of {of} over training seconds and over multiply-adds"
    with drawing(9.5, 4.2, alt) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        left.set(title="Time", xlabel="seconds in training steps", ylabel=f"{label} (%)")
        right.set(title="Compute", xlabel="million multiply-adds of one image's forward pass (log)")
        left.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        for axis in (left, right):
            axis.grid(axis="y")
        if not models:
            left.text(0.5, 0.5, "no run is finished", transform=left.transAxes, ha="center", color=GREY)
            return figure
        time = _draw(left, models, "training_seconds", accuracy, unit=1)
        compute = _draw(right, models, "multiply_adds", accuracy, unit=1e6)
        left.margins(0.12)
        left.set_xlim(left=-0.03 * left.get_xlim()[1])
        right.set_xscale("log", subs=[])
        right.margins(0.12)
        right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        figure.draw_without_rendering()  # lays out the axes, which the positions of the labels depend on
        _place_labels(left, time)
        _place_labels(right, compute)
    return figure


def _draw(
    axis: "Axes", models: list[ModelMetrics], cost: str, accuracy: str, *, unit: float
) -> list["Annotation"]:
    """Draw a marker with error bars for each model. Returns the labels, which aren't placed yet."""
    labels = []
    for number, model in enumerate(models):
        x, y = model.spread(cost), model.spread(accuracy)
        if x is None or y is None:
            continue
        color = color_of(number)
        axis.errorbar(
            x.mean / unit,
            y.mean * 100,
            xerr=_error_bar(x, 1 / unit),
            yerr=_error_bar(y, 100),
            fmt=MARKERS[number // len(OKABE_ITO) % len(MARKERS)],
            color=color,
            markersize=6,
            elinewidth=1.2,
            capsize=3,
        )
        runs = [run for run in model.finished if getattr(run, cost) is not None]
        axis.plot(
            [getattr(run, cost) / unit for run in runs],
            [getattr(run, accuracy) * 100 for run in runs],
            "o",
            color=color,
            markersize=2.5,
            alpha=0.5,
        )
        labels.append(
            axis.annotate(
                model.name, (x.mean / unit, y.mean * 100), xytext=(0, 0), textcoords="offset points",
                color=color, fontsize=8,
            )
        )  # fmt: skip
    return labels


def _error_bar(spread: Spread, scale: float) -> float | None:
    return spread.std * scale if spread.std else None


def _place_labels(axis: "Axes", labels: list["Annotation"]) -> None:
    """Put each label where it overlaps the fewest markers and bars, and no other label if possible."""
    drawn = [box for container in axis.containers for box in _boxes(axis, container)]
    placed: list[Any] = []

    def covered(label: "Annotation", position: tuple[int, int, str, str]) -> int:
        _move(label, position)
        box = label.get_window_extent()
        outside = box.x0 < axis.bbox.x0 or box.x1 > axis.bbox.x1 or box.y0 < axis.bbox.y0
        return 100 * (outside + box.count_overlaps(placed)) + box.count_overlaps(drawn)

    # The best model comes first, so that its label gets the upper position.
    for label in sorted(labels, key=lambda label: -label.xy[1]):
        label.set_in_layout(False)
        _move(label, min(LABEL_POSITIONS, key=lambda position: covered(label, position)))
        placed.append(label.get_window_extent())


def _boxes(axis: "Axes", container: Any) -> list[Any]:
    """Return the boxes that a marker and its error bars cover, in display coordinates."""
    from matplotlib.transforms import Bbox

    mark, _, bars = container
    lines = [axis.transData.transform(mark.get_xydata())]
    lines += [axis.transData.transform(line) for bar in bars for line in bar.get_segments()]
    margins = [5, *[1] * (len(lines) - 1)]
    return [
        Bbox.from_extents(*(line.min(axis=0) - margin), *(line.max(axis=0) + margin))
        for line, margin in zip(lines, margins, strict=True)
    ]


def _move(label: "Annotation", position: tuple[int, int, str, str]) -> None:
    right, up, horizontal, vertical = position
    label.set_position((right, up))
    label.set_horizontalalignment(horizontal)  # type: ignore[arg-type]
    label.set_verticalalignment(vertical)  # type: ignore[arg-type]
