"""The figure of a cluster: the speed of each worker and how it spends its time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.notebook.plots.style import GREY, OKABE_ITO, TRAIN, VALIDATION, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["worker_throughput"]

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
    with styled():
        alt = "Examples per second of each worker, and how it spent its time"
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
            color=OKABE_ITO[number % len(OKABE_ITO)],
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
    axis.set_axisbelow(True)
    if len(workers) <= MAX_WORKERS_IN_LEGEND:
        axis.legend(loc="lower right")


def _draw_shares(axis: "Axes", workers: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    labels, means = [], []
    for name, rows in workers.items():
        seconds = _column(rows, "steps") / _column(rows, "examples_per_second")  # up to a constant factor
        means.append([np.average(_column(rows, share), weights=seconds) for share, _, _ in SHARES])
        rate = np.average(_column(rows, "examples_per_second"), weights=seconds)
        labels.append(f"{name}\n{rate:,.0f} examples/s")
    positions, left = np.arange(len(labels)), np.zeros(len(labels))
    for (_, label, color), share in zip(SHARES, np.transpose(means), strict=True):
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
