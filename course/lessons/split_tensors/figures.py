"""The figures of lesson 13."""

from typing import TYPE_CHECKING

import numpy as np

from course.lessons.split_tensors.costs import SPLITS, STAGES, cheapest
from labkit.figures.style import OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
