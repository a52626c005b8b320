"""The figures that lessons 10 to 14 share: points beside a model's lines, and bars."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from course.lessons.workers import Span
from labkit.figures.style import GREY, MARK, color_of, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]  # x and y by name
Panels = Mapping[str, tuple[str, Curves, Curves]]  # label of the x axis, points, and lines, by title
IN_A_BAR: Any = {"ha": "center", "va": "center", "color": "white", "fontsize": 7}
FEW = 9  # values of x, up to which each is a tick
MANY = 200  # bars of a panel, from which they have no edges


def points_and_lines(
    panels: Panels,
    y_label: str,
    *,
    log: str = "x",
    marks: Mapping[str, float] | None = None,
    level: Mapping[str, float] | None = None,
) -> "Figure":
    """Draw measured points, and the lines of a model in the colours of the points of the same name.

    Args:
        panels: the label of the x axis, points, and lines, by the title of the panel.
        log: which axes are logarithmic: ``""``, ``"x"``, ``"y"`` or ``"xy"``.
        marks, level: dashed lines at a value of x, or of y, by their label.
    """
    every = [curves for _, *both in panels.values() for curves in both]
    names = list(dict.fromkeys(name for curves in every for name in curves))
    lows = [
        f"{title}, {name} {np.min(y):.3g} to {np.max(y):.3g}"
        for title, (_, points, lines) in panels.items()
        for name, (_, y) in (points or lines).items()
    ]
    with drawing(min(9.6, 6.4 + 2 * len(panels)), 3.5, f"{y_label}: {'; '.join(lows)}") as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, (title, (label, points, lines)) in zip(axes, panels.items(), strict=True):
            for name, (x, y) in lines.items():
                shown = None if name in points else name
                number = names.index(name)
                width = max(1.2, 2.8 - 0.6 * number)  # so that a curve shows below an equal one
                axis.plot(x, y, color=color_of(number), linewidth=width, label=shown)
            for name, (x, y) in points.items():
                number = names.index(name)
                axis.plot(x, y, "osD^vPX"[number % 7], color=color_of(number), markersize=5, label=name)
            for name, value in (marks or {}).items():
                axis.axvline(value, color=GREY, linestyle="--", label=name)
            for name, value in (level or {}).items():
                axis.axhline(value, color=MARK, linestyle="--", label=name)
            axis.set(title=title, xlabel=label, **{f"{name}scale": "log" for name in log})
            ticks = np.unique([value for x, _ in points.values() for value in np.ravel(x)])
            if 1 < len(ticks) <= FEW:
                axis.set_xticks(ticks)
                axis.minorticks_off()
            axis.xaxis.set_major_formatter(_bytes if label.startswith("bytes") else _number)
            axis.tick_params(axis="x", which="minor", labelbottom=False)
            axis.grid()
        if "y" in log:
            axes[0].yaxis.set_major_formatter("{x:g}")
        elif any(points for _, points, _ in panels.values()):
            axes[0].set_ylim(bottom=0)
        axes[0].set_ylabel(f"{y_label}{' (log)' * ('y' in log)}")
        if any(name in lines for _, points, lines in panels.values() for name in points):
            axes[0].plot([], [], color=GREY, linewidth=1.4, label="lines: predicted")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def _bytes(value: float, _: Any = None) -> str:
    unit, name = (1e6, "MB") if value >= 1e6 else (1e3, "kB") if value >= 1e3 else (1, "B")
    return f"{value / unit:.3g} {name}"


def _number(value: float, _: Any = None) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def timelines(
    panels: Mapping[str, Iterable[Sequence[Any]]],
    rows: Mapping[str, Sequence[str]] | None = None,
    end: float = 0.0,
) -> "Figure":
    """Draw the spans of workers as bars over time, one panel below the other.

    A span's name is ``kind:text``: the kind gives the colour, and the text is written into the bar.

    Args:
        panels: spans by title; each has the fields of a ``Span``, times in seconds.
        rows: what the rows of the workers are called, by title; ``worker 0``, … unless given.
        end: of the axis, in seconds, if no bar ends later.
    """
    from matplotlib.patches import Patch

    found = {title: [Span(*span) for span in spans] for title, spans in panels.items()}
    end = max(end, *(span.end for spans in found.values() for span in spans))
    kinds = list(dict.fromkeys(span.name.partition(":")[0] for spans in found.values() for span in spans))
    names = {
        title: (rows or {}).get(title) or [f"worker {at}" for at in range(1 + max(s.worker for s in spans))]
        for title, spans in found.items()
    }
    heights = [len(each) + 1.2 for each in names.values()]
    ends = ", ".join(f"{title} {max(s.end for s in spans):.3g} s" for title, spans in found.items())
    with drawing(9.5, 0.34 * sum(heights) + 0.6, f"What each worker does when, until: {ends}") as figure:
        axes = figure.subplots(len(found), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, spans) in zip(axes, found.items(), strict=True):
            edge = 0.8 if len(spans) < MANY else 0
            for worker, name, begin, stop in spans:
                kind, _, text = name.partition(":")
                color = color_of(kinds.index(kind))
                axis.barh(worker, stop - begin, 0.86, begin, color=color, edgecolor="white", linewidth=edge)
                if stop - begin > 0.013 * end * len(text):
                    axis.text((begin + stop) / 2, worker, text, **IN_A_BAR)
            axis.set_yticks(range(len(names[title])), names[title])
            axis.set(title=title, ylim=(len(names[title]) - 0.45, -0.55), xlim=(0, 1.01 * end))
            axis.tick_params(axis="y", length=0)
        axes[-1].set_xlabel("seconds")
        handles = [Patch(color=color_of(number), label=kind) for number, kind in enumerate(kinds)]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(kinds))
    return figure


def grouped_bars(panels: Mapping[str, Mapping[str, Mapping[str, float]]], y_label: str) -> "Figure":
    """Draw values as bars side by side, at most two panels in a row.

    Args:
        panels: values by title, by what the bars of one colour are, and by the name below the bars.
    """
    rows = -(-len(panels) // 2)
    with drawing(9.6, 0.6 + 2.4 * rows, f"{y_label}: {'; '.join(panels)}") as figure:
        axes = figure.subplots(rows, min(2, len(panels)), squeeze=False).ravel()
        for axis, (title, series) in zip(axes, panels.items(), strict=True):
            width = 0.8 / len(series)
            for number, (label, values) in enumerate(series.items()):
                at = np.arange(len(values)) + (number - (len(series) - 1) / 2) * width
                found = axis.bar(at, list(values.values()), width, color=color_of(number), label=label)
                axis.bar_label(found, fmt="{:,.3g}", fontsize=7)
            axis.set_xticks(range(len(values)), list(values), fontsize=7)
            axis.set(title=title, ylabel=y_label)
        if len(series) > 1:
            figure.legend(*axis.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    x_label: str,
    *,
    colours: Mapping[str, int] | None = None,
    marks: Mapping[str, float] | None = None,
    points: Mapping[str, float] | None = None,
) -> "Figure":
    """Draw the parts of some sums, a bar below the other, with the names of their parts.

    Args:
        bars: values by bar and part.
        colours: numbers of the parts' colours; by their order unless given.
        marks: where each bar has a red line.
        points: a measured value of each bar.
    """
    most = max(sum(parts.values()) for parts in bars.values())
    with drawing(9.0, 0.55 * len(bars) + 1.4, f"{x_label}: {'; '.join(bars)}") as figure:
        axis = figure.subplots()
        for row, (bar, parts) in enumerate(bars.items()):
            left = 0.0
            for number, (part, value) in enumerate(parts.items()):
                color = color_of(colours[part] if colours else number)
                label = None if colours or row else part
                axis.barh(row, value, 0.6, left, color=color, edgecolor="white", label=label)
                if value > 0.011 * most * len(part):
                    axis.text(
                        left + value / 2, row, part, ha="center", va="center", color="white", fontsize=7
                    )
                left += value
            if marks:
                axis.vlines(marks[bar], row - 0.45, row + 0.45, MARK, linewidth=3)
        if points:
            axis.plot(list(points.values()), range(len(bars)), "D", color="black", label="measured")
        if not colours:
            figure.legend(*axis.get_legend_handles_labels(), loc="outside upper right", ncols=5)
        axis.set_yticks(range(len(bars)), list(bars))
        axis.set(ylim=(len(bars) - 0.4, -0.6), xlabel=x_label)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
    return figure
