"""The figures of lesson 11."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from course.lessons.figures import points_and_lines
from course.lessons.memory.residual import BATCHES, BLOCKS, held
from labkit.figures.style import GREY, MARK, OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEGABYTE = 1e6


def peaks(measured: Mapping[str, Mapping[int, int]], predicted: Mapping[str, float]) -> "Figure":
    """Draw over the batch size how much the memory of a process grows that trains, and the model's lines.

    Args:
        measured: by how it trains, the peak in bytes by the number of images; 0: memory before all steps.
        predicted: by the same names, bytes of an image; names without it get no line.
    """
    points = {}
    for name, found in sorted(measured.items()):
        grown = {images: (peak - found[0]) / MEGABYTE for images, peak in found.items() if images}
        points[name] = [*grown], [*grown.values()]
    most = max(BATCHES)
    lines = {name: ((0, most), (0, each * most / MEGABYTE)) for name, each in predicted.items()}
    panel = {"Growth of the memory of a process that trains": ("images of a batch", points, lines)}
    return points_and_lines(panel, "peak − memory before, MB", log="")


def held_tensors(length: int) -> "Figure":
    """Draw how many tensors are held during a step that recomputes segments of ``length`` blocks."""
    curve = held(BLOCKS, length)
    passed, most = range(1, len(curve) + 1), max(curve)
    with drawing(7.6, 3.0, f"Segments of {length} blocks: at most {most} tensors are held") as figure:
        axis = figure.subplots()
        axis.fill_between(passed, curve, color=OKABE_ITO[5], alpha=0.35, linewidth=0)
        axis.plot(passed, curve, color=OKABE_ITO[0])
        axis.axhline(most, color=MARK, linestyle="--", linewidth=1)
        axis.text(len(curve), most, f"peak: {most}", color=MARK, ha="right", va="bottom")
        axis.axvline(BLOCKS, color=GREY, linestyle=":")
        axis.text(BLOCKS, 146, " forward ends", color=GREY, va="top")
        axis.set(xlabel="blocks passed so far, forward and then backward", ylabel="tensors held")
        axis.set(title=f"Segments of {length} of {BLOCKS} blocks", ylim=(0, 150), xlim=(0, len(curve)))
        axis.grid(axis="y")
    return figure
