"""The figures of lesson 14."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from course.lessons.failure.processes import Event
from course.lessons.failure.training import (
    CHECKPOINT,
    COUNT,
    LOST,
    RESTART,
    expected_goodput,
    goodput,
    periods,
)
from labkit.figures.style import GREY, MARK, OKABE_ITO, TEST, TRAIN, VALIDATION, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {COUNT: TRAIN, LOST: VALIDATION, CHECKPOINT: GREY, RESTART: OKABE_ITO[4]}


def timeline(logs: Mapping[str, Sequence[Event]]) -> "Figure":
    """Draw what trainings did at each moment; ``logs`` by title, drawn from top to bottom."""
    with drawing(9.4, 0.9 + 0.55 * len(logs), f"what each training did when: {', '.join(logs)}") as figure:
        axis = figure.subplots()
        for row, log in enumerate(logs.values()):
            start, found = log[0].seconds, periods(log)
            for kind, colour in COLOURS.items():
                bars = [(begin - start, end - begin) for name, begin, end in found if name == kind]
                axis.broken_barh(bars, (row - 0.36, 0.72), color=colour, label=kind if row == 0 else None)
            lost = [event.seconds - start for event in log if event.what == "lost"]
            axis.plot(lost, [row] * len(lost), "x", color=MARK, label="killed" if row == 0 else None)
        axis.set_yticks(range(len(logs)), list(logs))
        axis.invert_yaxis()
        axis.set(xlabel="seconds since the first start", title="Where the time goes")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def goodput_curve(
    work: NDArray[np.float64],
    logs: Sequence[Sequence[Sequence[Event]]],
    costs: tuple[float, float, float],
    simulated: NDArray[np.float64],
    young: float,
) -> "Figure":
    """Draw goodput over the seconds of work between two checkpoints, ``work`` [intervals].

    Args:
        logs: of the trainings of each interval.
        costs: seconds of a checkpoint and a restart, and between two failures.
        simulated: of as many trainings together, [intervals, repetitions].
        young: the seconds that Young's formula gives.
    """
    with drawing(8.8, 3.6, "goodput over the seconds of work between two checkpoints") as figure:
        axis = figure.subplots()
        fine = np.geomspace(work[0], work[-1], 100)
        expected = [expected_goodput(each, *costs) for each in fine]
        axis.plot(fine, expected, color=TRAIN, label="expected (Daly's formula)")
        band = np.quantile(simulated, [0.1, 0.9], axis=1)
        axis.fill_between(work, *band, color=TRAIN, alpha=0.12, label="80 % of the simulations")
        for seconds, each in zip(work, logs, strict=True):
            single = [goodput([log]) for log in each]
            axis.plot([seconds] * len(each), single, "o", ms=4, color=GREY, alpha=0.5)
        label = "measured: 5 together (grey: each)"
        axis.plot(work, list(map(goodput, logs)), "D", ms=7, color=VALIDATION, label=label)
        axis.axvline(young, color=TEST, linestyle="--", label=f"Young's interval: {young:.2f} s")
        axis.set_xscale("log")
        axis.set_xticks(work, [f"{seconds:.2g}" for seconds in work])
        axis.minorticks_off()
        axis.set(xlabel="seconds of work between two checkpoints", ylabel="goodput", ylim=(0, 1))
        axis.set_title("Too often and too rarely")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def stragglers(
    milliseconds: Mapping[str, float], accuracy: Mapping[str, NDArray[np.float64]], owners: Sequence[int]
) -> "Figure":
    """Draw the time of a step, and the accuracy of each class, of several trainings.

    Args:
        milliseconds: of a step, by the training's title.
        accuracy: float64 [classes] by the title.
        owners: the worker that holds the images of each class.
    """
    alt = f"time of a step, and accuracy of each class: {', '.join({**milliseconds, **accuracy})}"
    with drawing(10, 3.4, alt) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1, 2))
        left.bar_label(left.bar(list(milliseconds), list(milliseconds.values()), color=TRAIN), fmt="%.0f")
        left.set(ylabel="ms", title="Time of a step")
        order = np.argsort(owners, kind="stable")
        for number, (title, values) in enumerate(accuracy.items()):
            right.bar(np.arange(len(order)) + 0.4 * number, values[order], 0.4, label=title)
        right.set_xticks(np.arange(len(order)) + 0.2, [f"class {at}\nw{owners[at]}" for at in order])
        right.set(
            ylabel="share of right predictions",
            ylim=(0, 1.15),
            title="Classes, by the worker that has them; w4 is slow",
        )
        right.legend(ncols=2)
        for axis in (left, right):
            axis.tick_params(axis="x", labelsize=7)
    return figure


def differences(losses: Mapping[str, ArrayLike], reference: ArrayLike, lost_at: int) -> "Figure":
    """Draw how far losses of several trainings are from ``reference``, [steps], in nats."""
    alt = f"difference of the losses from an undisturbed training: {', '.join(losses)}"
    with drawing(8.8, 3.2, alt) as figure:
        axis = figure.subplots()
        for (title, values), marker in zip(losses.items(), "os", strict=False):
            apart = np.abs(np.subtract(values, reference))
            axis.plot(np.arange(len(apart)), np.maximum(apart, 1e-17), marker, ms=3, label=title)
        axis.axvline(lost_at, color=MARK, linewidth=1, linestyle="--", label="a worker is lost")
        axis.set(yscale="log", ylim=(3e-18, 1), xlabel="step", ylabel="difference of the loss (nats)")
        axis.set_title("Against the undisturbed training (0 is drawn at 1e-17)")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
