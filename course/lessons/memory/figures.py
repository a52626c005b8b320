"""The figures of lesson 11."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course.lessons.memory.residual import BLOCKS, held
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
    ends = ", ".join(
        f"{name} {(max(found.values()) - found[0]) / MEGABYTE:.0f} MB" for name, found in measured.items()
    )
    with drawing(8.2, 3.4, f"Growth of the memory over the images of a batch; at the end {ends}") as figure:
        axis = figure.subplots()
        for number, (name, found) in enumerate(sorted(measured.items())):
            color, images = OKABE_ITO[number], [count for count in found if count]
            values = [(found[count] - found[0]) / MEGABYTE for count in images]
            axis.plot(images, values, "osD^"[number], color=color, markersize=6, label=f"{name}: measured")
            if name in predicted:
                line = (0, predicted[name] * max(images) / MEGABYTE)
                axis.plot((0, max(images)), line, "--", color=color, linewidth=1.2, label=f"{name}: counted")
        axis.set(title="Growth of the memory of a process that trains", xlabel="images of a batch")
        axis.set(ylabel="peak − memory before, MB", xlim=(0, None), ylim=(0, None))
        axis.grid(axis="y")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper")
    return figure


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


def kinds_of_bytes(
    held: Mapping[str, Sequence[float]], measured: Sequence[float] = (), last: str = "activations"
) -> "Figure":
    """Draw bytes by kind as stacked bars.

    Args:
        held: by bar, bytes of weights, of gradients, of state, and of what ``last`` names.
        measured: by bar, measured bytes. Without them, the bars are shares of their sum.
        last: name of the last kind.
    """
    sums = {name: sum(counts) / MEGABYTE for name, counts in held.items()}
    names = [f"{name}\ncounted: {total:,.0f} MB" for name, total in sums.items()]
    with drawing(7.6, 3.4, f"Bytes by kind: {', '.join(names)}".replace("\n", " ")) as figure:
        axis = figure.subplots()
        below = [0.0] * len(held)
        for number, kind in enumerate(("weights", "gradients", "Adam's state", last)):
            values = [counts[number] / MEGABYTE for counts in held.values()]
            if not measured:
                values = [100 * value / total for value, total in zip(values, sums.values(), strict=True)]
            bars = axis.bar(names, values, bottom=below, width=0.55, color=OKABE_ITO[number], label=kind)
            if not measured:
                texts = [f"{value:.3g} %" if value > 4 else "" for value in values]
                axis.bar_label(bars, texts, label_type="center", color="white", fontweight="bold")
            below = [low + value for low, value in zip(below, values, strict=True)]
        if measured:
            points = [value / MEGABYTE for value in measured]
            axis.plot(names, points, "D", color="black", label="measured: growth of the peak")
        axis.set(ylabel="MB of one worker" if measured else "share of the bytes, %", ylim=(0, None))
        axis.set_title("What one of the workers holds" if measured else "Where the bytes of a training are")
        axis.tick_params(axis="x", length=0)
        axis.grid(axis="y")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper")
    return figure
