"""The figures of lesson 10."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.replicas.figures import COMPLETE, SHADES
from labkit.figures.style import GREY, MARK, OKABE_ITO, color_of, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]  # bytes and seconds
WINDOW = 15  # steps whose mean loss is drawn


def _bytes(value: float, _: Any = None) -> str:
    unit, name = (1e6, "MB") if value >= 1e6 else (1e3, "kB") if value >= 1e3 else (1, "B")
    return f"{value / unit:.3g} {name}"


def _byte_axis(axis: "Axes", label: str) -> None:
    axis.set(xscale="log", xlabel=f"{label} (log)")
    axis.xaxis.set_major_formatter(_bytes)
    axis.grid()


def over_bytes(
    title: str,
    label: str,
    measured: Mapping[str, Curve],
    predicted: Mapping[str, Curve],
    *,
    log: bool = False,
    upright: Mapping[str, float] | None = None,
    level: Mapping[str, float] | None = None,
) -> "Figure":
    """Draw seconds over bytes: measured points, and a line of what the model says, by the same names.

    Args:
        label: of the bytes.
        log: whether the seconds have a logarithmic axis, too.
        upright, level: dashed lines at so many bytes, or seconds, by their label.
    """
    lows = "; ".join(
        f"{name} {1e3 * min(y):.3g} to {1e3 * max(y):.3g} ms" for name, (_, y) in measured.items()
    )
    with drawing(8.6, 3.4, f"{title}. Measured: {lows}") as figure:
        axis = figure.subplots()
        for number, (name, (sizes, seconds)) in enumerate(measured.items()):
            x, y = predicted[name]
            axis.plot(x, 1e3 * np.array(y), color=OKABE_ITO[number], linewidth=1.3)
            points: dict[str, Any] = {"color": OKABE_ITO[number], "marker": "osD^v"[number], "markersize": 5}
            axis.plot(sizes, 1e3 * np.array(seconds), linestyle="", label=name, **points)
        axis.plot([], [], color=GREY, linewidth=1.3, label="lines: the model")
        for name, value in (upright or {}).items():
            axis.axvline(value, color=GREY, linestyle="--", label=name)
        for name, value in (level or {}).items():
            axis.axhline(1e3 * value, color=MARK, linestyle="--", label=name)
        axis.set(title=title, ylabel=f"milliseconds{' (log)' * log}")
        _byte_axis(axis, label)
        if log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        else:
            axis.set_ylim(bottom=0)
            axis.set_xticks(sorted({size for sizes, _ in measured.values() for size in sizes}))
            axis.minorticks_off()
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def timelines(
    panels: Mapping[str, Sequence[tuple[int, str, float, float]]], *, rows: bool = False
) -> "Figure":
    """Draw bars over time, each with its name, in a row for each worker.

    Args:
        panels: spans by title: worker, name, begin and end in seconds. The name ``to 2`` is drawn as →2.
        rows: whether each name has a row of its own.
    """
    spans = [span for found in panels.values() for span in found]
    names = sorted({name for _, name, _, _ in spans})

    def row_of(worker: int, name: str) -> str:
        return f"worker {worker}: {name}" if rows else f"worker {worker}"

    labels = sorted({row_of(worker, name) for worker, name, _, _ in spans})
    last = 1e3 * max(end for _, _, _, end in spans)
    ends = ", ".join(f"{title} {1e3 * max(s[3] for s in found):.0f} ms" for title, found in panels.items())
    with drawing(9.4, 2.7, f"What each worker does when, until its end: {ends}") as figure:
        axes = figure.subplots(1, len(panels), sharey=True)
        for axis, (title, found) in zip(axes, panels.items(), strict=True):
            for worker, name, begin, end in found:
                row, color = labels.index(row_of(worker, name)), color_of(names.index(name))
                axis.barh(row, 1e3 * (end - begin), 0.7, 1e3 * begin, color=color, edgecolor="white")
                if not rows:
                    where = {"ha": "center", "va": "center", "color": "white", "fontsize": 7}
                    axis.text(500 * (begin + end), row, name.replace("to ", "→"), **where)
            label = "milliseconds" + "; →1: a message to worker 1" * any(name == "to 1" for name in names)
            axis.set(title=title, xlabel=label, xlim=(0, 1.05 * last))
        axes[0].set_yticks(range(len(labels)), labels)
        axes[0].invert_yaxis()
    return figure


def contributions(moments: Sequence[Sequence[NDArray[Any]]]) -> "Figure":
    """Draw whose values are summed in each chunk during halving–doubling, after each exchange.

    Args:
        moments: by worker and exchange, the array [chunks] that began as ones.
    """
    from matplotlib.colors import ListedColormap

    workers = len(moments)
    distances = [workers >> power for power in range(1, workers.bit_length())]
    titles = ["start", *(f"halving, distance {distance}" for distance in distances)]
    titles += [f"doubling, distance {distance}" for distance in reversed(distances)]
    states = [np.array([own[number] for own in moments]) for number in range(len(titles))]
    said = [f"{title}, {(state == workers).sum()}" for title, state in zip(titles, states, strict=True)]
    with drawing(
        9.6, 2.8, f"Complete chunks of {workers} workers after each exchange: {'; '.join(said)}"
    ) as figure:
        axes = figure.subplots(1, len(titles), sharey=True)
        for axis, title, state in zip(axes, titles, states, strict=True):
            axis.imshow(state, ListedColormap([*SHADES[: workers - 1], COMPLETE]), vmin=1, vmax=workers)
            for (worker, chunk), value in np.ndenumerate(state):
                color = "white" if value == workers else "#1f2328"
                axis.text(chunk, worker, f"{value:.0f}", ha="center", va="center", color=color)
            axis.set_title(title, fontsize=8, loc="center")
            axis.set(xlabel="chunk", xticks=range(workers))
            axis.set_yticks(range(workers), [f"worker {worker}" for worker in range(workers)])
            axis.tick_params(length=0)
        figure.suptitle("How many workers' values are summed in each chunk", fontsize=9)
    return figure


def compression(losses: Mapping[str, NDArray[np.float64]], sent: Mapping[str, float]) -> "Figure":
    """Draw losses over steps and over the bytes that a worker has sent.

    Args:
        losses: nats, float64 [steps], by method; the figure has the mean of some steps.
        sent: bytes that a worker sends in a step, by method.
    """
    ends = ", ".join(f"{name} {values[-WINDOW:].mean():.2f}" for name, values in losses.items())
    with drawing(9.4, 3.3, f"Loss by step and by bytes sent, for four ways to send: {ends} nats") as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (name, values) in enumerate(losses.items()):
            smooth = np.convolve(values, np.ones(WINDOW) / WINDOW, "valid")
            at = np.arange(WINDOW, len(values) + 1)
            style = {"color": OKABE_ITO[number], "linewidth": 3 if number == 0 else 1.4}
            left.plot(at, smooth, label=name, **style)
            right.plot(at * sent[name], smooth, **style)
        left.set(title="By step", xlabel="step", ylabel=f"loss (nats, mean of {WINDOW} steps)")
        left.grid()
        left.legend()
        right.set_title("By bytes")
        _byte_axis(right, "bytes sent by a worker")
    return figure
