"""The figures of lesson 12."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from course.lessons.pipeline.schedules import idle_share, most_kept, schedule_of
from course.lessons.workers import Span
from labkit.figures.style import GREY, MARK, TRAIN, VALIDATION, color_of, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT: Any = {"ha": "center", "va": "center", "color": "white", "fontsize": 7}
PASSES = {"F": ("forward", TRAIN), "B": ("backward", VALIDATION)}


def timelines(runs: Mapping[str, Sequence[Span]], end: float = 0.0) -> "Figure":
    """Draw when each stage computed which micro-batch, one panel for each run, by its title.

    ``end``: of the axis, in seconds, if no run is longer.
    """
    from matplotlib.patches import Patch

    schedules = {name: schedule_of(spans) for name, spans in runs.items()}
    end = max(end, *(span.end for spans in runs.values() for span in spans))
    alt = "; ".join(f"{name}: idle for {idle_share(spans):.0%}" for name, spans in runs.items())
    heights = [len(schedule) + 1.2 for schedule in schedules.values()]
    with drawing(9.5, 0.34 * sum(heights) + 0.6, f"Timeline of a pipeline: {alt}") as figure:
        axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (name, spans) in zip(axes, runs.items(), strict=True):
            for span in spans:
                left, width = 1000 * span.begin, 1000 * (span.end - span.begin)
                colors = {"color": PASSES[span.name[0]][1], "edgecolor": "white", "linewidth": 0.8}
                axis.barh(span.worker, width, 0.86, left, **colors)
                if width > 13 * end * len(span.name[1:]):
                    axis.text(left + width / 2, span.worker, span.name[1:], **TEXT)
            axis.set_title(f"{name}: stages are idle for {idle_share(spans):.0%}")
            kept = most_kept(schedules[name])
            axis.set_yticks(range(len(kept)), [f"stage {s}, keeps {most:2}" for s, most in enumerate(kept)])
            axis.set(ylim=(len(kept) - 0.45, -0.55), xlim=(0, 1010 * end))
            axis.tick_params(axis="y", length=0)
        axes[-1].set_xlabel(
            "milliseconds; in a bar: its micro-batch; keeps: the most micro-batches kept at once"
        )
        handles = [Patch(color=color, label=f"{name} pass") for name, color in PASSES.values()]
        figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def bubbles(measured: Mapping[int, float], stages: int) -> "Figure":
    """Draw the idle share over the number of micro-batches: the formula, and what was measured."""
    values = ", ".join(f"{share:.0%} with {count}" for count, share in measured.items())
    with drawing(6.4, 3.0, f"Idle share of {stages} stages over micro-batches: {values}") as figure:
        axis, grid = figure.subplots(), np.geomspace(1, max(measured), 60)
        formula = 100 * (stages - 1) / (grid + stages - 1)
        axis.plot(grid, formula, color=GREY, label="predicted: (p − 1) / (m + p − 1)")
        shares = [100 * share for share in measured.values()]
        axis.plot(list(measured), shares, "o", color=TRAIN, label="measured, workers that wait")
        axis.set(title=f"The bubble of {stages} stages", xscale="log", ylim=(0, 100))
        axis.set(xlabel="micro-batches m (log)", ylabel="idle share (%)")
        axis.set_xticks(list(measured), [str(count) for count in measured])
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend()
    return figure


def block_costs(costs: Mapping[str, Mapping[str, float]], cuts: Mapping[str, Sequence[int]]) -> "Figure":
    """Draw each block's share of the network by several measures, and where each would cut it.

    ``cuts``: by measure, the numbers of the blocks at which stages 1, 2, … begin.
    """
    names = list(next(iter(costs.values())))
    groups = list(dict.fromkeys(name.split("_")[0] for name in names))
    alt = "; ".join(f"by {measure}, cut before {names[cut]}" for measure, (cut, *_) in cuts.items())
    with drawing(9.0, 0.6 * len(costs) + 1.3, f"Share of each block: {alt}") as figure:
        axis = figure.subplots()
        for row, (measure, values) in enumerate(costs.items()):
            ends = 100 * np.cumsum(list(values.values())) / sum(values.values())
            for name, left, right in zip(names, [0.0, *ends], ends, strict=False):
                color = color_of(groups.index(name.split("_")[0]))
                axis.barh(row, right - left, 0.6, left, color=color, edgecolor="white")
                if right - left > 5:
                    shown = name.replace("stage", "").replace("_block", ".")
                    axis.text((left + right) / 2, row, shown, **TEXT)
            axis.vlines([ends[cut - 1] for cut in cuts[measure]], row - 0.45, row + 0.45, MARK, linewidth=3)
        axis.set_yticks(range(len(costs)), list(costs))
        axis.set(ylim=(len(costs) - 0.4, -0.6), xlim=(0, 100), xlabel="share of the network (%)")
        axis.set_title("Blocks of the ResNet (2.1 is stage2_block1), and the best cut in red")
        axis.tick_params(axis="y", length=0)
    return figure
