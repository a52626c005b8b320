"""The figures of lesson 13."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from course.lessons.split_tensors.costs import SPLITS, STAGES, Block, Pairs, bytes_sent, cheapest
from labkit.figures.style import GREY, MARK, OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from course.lessons.split_tensors.roofline import Machine, Operation

COLOURS = dict(zip(SPLITS, OKABE_ITO, strict=False))
WHOLE = "#d1d5db"
TENSORS = ("input", "first kernel", "hidden", "second kernel", "output")
CUTS = {  # of each tensor; an empty text: whole on each worker
    "images": ("images", "", "images", "", "images"),
    "channels": ("", "across", "across", "down", ""),
    "height": ("down", "", "down", "", "down"),
}


def splits_figure() -> "Figure":
    """Draw which part of each tensor of a block two workers hold under each split."""
    from matplotlib.patches import Patch

    alt = f"Which of the tensors {', '.join(TENSORS)} are cut: " + "; ".join(
        f"by {split}: {', '.join(cut or 'whole' for cut in cuts)}" for split, cuts in CUTS.items()
    )
    with drawing(8.0, 4.6, alt) as figure:
        axes = figure.subplots(len(CUTS), len(TENSORS))
        for split, row in zip(CUTS, axes, strict=True):
            for name, cut, axis in zip(TENSORS, CUTS[split], row, strict=True):
                _draw_tensor(axis, cut, kernel="kernel" in name)
                axis.set_title(name if split == "images" else "", loc="center")
            row[0].annotate(f"by {split}", (-0.4, 0.5), xycoords="axes fraction", rotation=90, va="center")
        labels = {OKABE_ITO[0]: "on worker 0 only", OKABE_ITO[1]: "on worker 1 only", WHOLE: "whole on both"}
        handles = [Patch(color=colour, label=label) for colour, label in labels.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _draw_tensor(axis: "Axes", cut: str, *, kernel: bool) -> None:
    """Draw a kernel, or two images behind each other, in two parts."""
    from matplotlib.patches import Rectangle

    for image in (0,) if kernel else (1, 0):
        corner, parts = 0.25 * image, [(0.0, 0.0, 1.0, 1.0)]
        if cut == "across":
            parts = [(0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 0.5, 1.0)]
        elif cut == "down":
            parts = [(0.0, 0.5, 1.0, 0.5), (0.0, 0.0, 1.0, 0.5)]
        for part, (x, y, width, height) in enumerate(parts):
            colour = OKABE_ITO[image if cut == "images" else part] if cut else WHOLE
            place = (x + corner, y + corner), width, height
            axis.add_patch(Rectangle(*place, facecolor=colour, edgecolor="white", linewidth=1.5))
    axis.set(xlim=(-0.1, 1.4), ylim=(-0.1, 1.4), aspect="equal", xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    axis.set_xlabel("out channels" if kernel else "channels", fontsize=8)
    axis.set_ylabel("in channels" if kernel else "rows", fontsize=8)


def bytes_figure(counted: Mapping[tuple[Block, str], float], images: int, workers: int) -> "Figure":
    """Draw the predicted bytes of each split over the batch, and those that were counted for ``images``.

    Args:
        counted: bytes of the busiest worker by (block, split).
    """
    batches = [2**power for power in range(2, 10)]
    blocks = list(dict.fromkeys(block for block, _ in counted))
    with drawing(9.5, 3.5, f"Bytes that each of {workers} workers sends in a step, over the batch") as figure:
        axes = figure.subplots(1, len(blocks), sharey=True)
        for block, axis in zip(blocks, axes, strict=True):
            for split in SPLITS:
                sent = [bytes_sent(split, block.with_images(batch), workers) / 1e6 for batch in batches]
                axis.plot(batches, sent, color=COLOURS[split], label=f"by {split}, predicted")
                axis.plot(images, counted[block, split] / 1e6, "o", color=COLOURS[split], markersize=7)
            axis.set(title=block.name, xscale="log", yscale="log", xlabel="images of a batch")
            axis.set_xticks(batches[::2], [str(batch) for batch in batches[::2]], minor=False)
            axis.grid()
        axes[0].plot([], [], "o", color=GREY, label="counted")
        axes[0].set_ylabel(f"MB that each of {workers} workers\nsends in a step")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def map_figure(workers: int) -> "Figure":
    """Draw which split sends the fewest bytes, by stage and batch."""
    from matplotlib.patches import Patch

    batches = [2**power for power in range(11)]
    with drawing(8.0, 3.6, f"Cheapest split by stage and batch for {workers} workers") as figure:
        axis = figure.subplots()
        for y, block in enumerate(STAGES):
            found = [COLOURS[cheapest(block.with_images(images), workers)] for images in batches]
            axis.barh([y] * len(batches), 0.96, 0.92, np.arange(len(batches)) - 0.48, color=found)
        axis.set_xticks(range(len(batches)), [f"{images:,}" for images in batches])
        axis.set_yticks(range(len(STAGES)), [block.name for block in STAGES])
        axis.invert_yaxis()
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.set(title=f"The split with the fewest bytes, {workers} workers", xlabel="images of a batch")
        handles = [Patch(color=COLOURS[split], label=f"by {split}") for split in SPLITS]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def seconds_figure(pairs: Pairs) -> "Figure":
    """Draw predicted and measured ms of a step as pairs of bars, a panel for each block and link."""
    with drawing(9.5, 5.2, f"Predicted and measured ms of a step: {'; '.join(pairs)}") as figure:
        axes = figure.subplots(2, -(-len(pairs) // 2)).ravel()
        for axis, (title, found) in zip(axes, pairs.items(), strict=True):
            for number, name in enumerate(("predicted", "measured")):
                places = np.arange(len(found)) + 0.4 * number
                values = [1e3 * pair[number] for pair in found.values()]
                bars = axis.bar(places, values, 0.38, color=(GREY, OKABE_ITO[0])[number], label=name)
                axis.bar_label(bars, fmt="{:,.0f}", fontsize=8)
            axis.set_xticks(np.arange(len(found)) + 0.2, list(found))
            axis.set_title(title, fontsize=9)
            axis.set_ylabel("ms of a step")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def roofline_figure(
    machine: "Machine", operations: "Sequence[Operation]", parts: "Sequence[Operation]"
) -> "Figure":
    """Draw the machine's roof, measured operations under it, and on the roof ``parts``, not measured.

    Args:
        parts: a 3×3 convolution of 64 channels cut by channels for 1, 2, 4, 8 and 16 workers.
    """
    intensity = np.geomspace(0.05, 1000, 200)
    with drawing(9.0, 4.2, "GFLOP/s over FLOP per byte: the roof of this machine and operations") as figure:
        axis = figure.subplots()
        axis.plot(intensity, [machine.limit(value) for value in intensity], color="#1f2328", label="roof")
        axis.axvline(
            machine.ridge, color=GREY, linestyle=":", label=f"ridge: {machine.ridge:.0f} FLOP a byte"
        )
        for operation, marker, colour in zip(operations, "osD^vP", OKABE_ITO, strict=False):
            place = operation.intensity, operation.flops / operation.seconds / 1e9
            axis.plot(*place, marker, markersize=7, color=colour, label=operation.name)
        places = [(each.intensity, machine.limit(each.intensity)) for each in parts]
        label = "3×3, 64 channels, cut by channels\nfor 1 (right), 2, 4, 8, 16 (left) workers; computed"
        axis.plot(*zip(*places, strict=True), "x-", color=MARK, label=label, linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="FLOP for each byte read or written", ylabel="GFLOP/s")
        axis.set_title("Roofline of this machine")
        axis.grid()
        figure.legend(loc="outside right upper")
    return figure
