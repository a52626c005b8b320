"""Computations and figures of lesson 05: a lost worker, staleness, traffic, slow workers, slow networks."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.hosts import check_link
from labkit.figures.style import GREY, MARK, OKABE_ITO, TRAIN, VALIDATION, drawing
from labkit.run import Run
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


# ---- what a run recorded -------------------------------------------------------------------------------


def every_row(run: Run) -> list[dict[str, Any]]:
    """Return the training rows of a run as they were written, those of lost steps included."""
    return [row for row in lines_of(run) if row.get("split") == "train"]


def lines_of(run: Run) -> list[dict[str, Any]]:
    """Return all rows of ``metrics.jsonl`` as they were written."""
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def _before_restarts(run: Run) -> list[int]:
    """Return which of ``every_row`` were the last before a restart.

    The steps alone don't show one that lost no step, because a checkpoint had just been saved.
    """
    last, found = -1, []
    for row in lines_of(run):
        last += row.get("split") == "train"
        if "resumed_at_step" in row and last >= 0:
            found.append(last)
    return found


def worker_rows(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that each worker of a cluster wrote, one a second, by its name."""
    return read_worker_metrics(RunDirectory(run.path).cluster_path)


def worker_sessions(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return ``worker_rows``, with those before and after a restart under names of their own."""
    rows, parts = every_row(run), dict[str, list[dict[str, Any]]]()
    starts = [rows[last + 1]["wall_time"] for last in _before_restarts(run) if last + 1 < len(rows)]
    for name, found in worker_rows(run).items():
        for row in found:
            session = _session(sum(row["wall_time"] >= start for start in starts))
            parts.setdefault(f"{name}, {session}", []).append(row)
    return parts


def step_seconds(run: Run) -> Floats:
    """Return for each worker the median seconds of its steps: float64 [workers].

    For an asynchronous run; each row says which worker made the step, and how long it took.
    """
    train = run.metrics()
    workers = np.unique(train["worker"])
    return np.array([np.median(train["worker_seconds"][train["worker"] == worker]) for worker in workers])


def rates(seconds: Floats, images: int) -> tuple[float, float]:
    """Return images per second of workers together: synchronous and asynchronous.

    Args:
        seconds: of one step of each worker, float64 [workers].
        images: that each worker computes in a step.
    """
    return len(seconds) * images / float(np.max(seconds)), float(np.sum(images / seconds))


# ---- a lost worker -------------------------------------------------------------------------------------


def loss_comparison(killed: Run, alone: Run) -> "Figure":
    """Draw the losses of two runs over each other, and their difference on a logarithmic axis."""
    curves = [run.metrics() for run in (killed, alone)]
    difference = np.abs(curves[0]["loss"] - curves[1]["loss"])
    with drawing(
        9.5,
        3.0,
        "Loss by step of the killed cluster and of one process: the curves cover each other; "
        f"their largest difference is {difference.max():.2g} nats",
    ) as figure:
        losses, gaps = figure.subplots(1, 2, width_ratios=(3, 2))
        losses.plot(
            curves[1]["step"],
            curves[1]["loss"],
            color=VALIDATION,
            linewidth=4,
            alpha=0.5,
            label="one process",
        )
        losses.plot(
            curves[0]["step"], curves[0]["loss"], color=TRAIN, linewidth=1.2, label="two workers, one killed"
        )
        losses.set(title="Training loss", xlabel="step", ylabel="nats", ylim=(0, None))
        losses.legend()
        gaps.semilogy(curves[0]["step"], np.maximum(difference, 1e-9), color=GREY)
        gaps.set(title="Difference of the two", xlabel="step", ylabel="nats", ylim=(1e-9, 10))
        gaps.grid(axis="y")
    return figure


def price_of_a_loss(run: Run) -> "Figure":
    """Draw the step over time of a run that lost a worker: lost steps, the pause, the steps made again."""
    rows = every_row(run)
    time = np.array([row["wall_time"] for row in rows])
    step = np.array([row["step"] for row in rows])
    time -= time[0]
    back = [last for last in _before_restarts(run) if last + 1 < len(rows)]
    with drawing(
        7.5, 2.9, "Step over time: training pauses after the loss and goes on from a checkpoint"
    ) as figure:
        axis = figure.subplots()
        for number, part in enumerate(np.split(np.arange(len(step)), np.add(back, 1))):
            axis.plot(
                time[part],
                step[part],
                ".-",
                markersize=4,
                color=OKABE_ITO[number % 7],
                label=_session(number),
            )
        for last in back:
            axis.axvspan(time[last], time[last + 1], color=GREY, alpha=0.15, linewidth=0)
            middle = (time[last] + time[last + 1]) / 2
            axis.text(
                middle, 2, "restart of\nall tasks", ha="center", va="bottom", color="#374151", fontsize=8
            )
            lost = (step > step[last + 1] - 1) & (np.arange(len(step)) <= last)
            if lost.any():
                axis.plot(time[lost], step[lost], "x", color=MARK, markersize=6, label="lost, made again")
        axis.set(
            title="The price of a lost worker",
            xlabel="seconds since the first step",
            ylabel="step",
            ylim=(0, None),
        )
        axis.legend(loc="lower right")
    return figure


def _session(number: int) -> str:
    return "before the loss" if number == 0 else "after the restart"


# ---- asynchronous workers ------------------------------------------------------------------------------


def staleness_figure(runs: Mapping[str, Run]) -> "Figure":
    """Draw the histogram of staleness of each run, with a colour for each worker."""
    with drawing(9.5, 2.9, f"Histograms of staleness: {', '.join(runs)}") as figure:
        axes = np.atleast_1d(figure.subplots(1, len(runs), sharey=True, sharex=True))
        for axis, (name, run) in zip(axes, runs.items(), strict=True):
            train = run.metrics()
            highest = max(int(one.metrics()["staleness"].max()) for one in runs.values())
            bins = np.arange(highest + 1)
            below = np.zeros(highest + 1)
            for worker in np.unique(train["worker"]):
                mine = train["staleness"][train["worker"] == worker].astype(int)
                counts = np.bincount(mine, minlength=highest + 1)
                label = f"worker {worker:.0f}: {len(mine)} updates, mean {mine.mean():.1f}"
                axis.bar(bins, counts, bottom=below, color=OKABE_ITO[int(worker)], label=label)
                below += counts
            axis.set(title=name, xlabel="staleness: updates by others since the read", xticks=bins)
            axis.legend()
        axes[0].set_ylabel("updates")
        axes[0].set_ylim(0, 1.1 * max(axis.dataLim.y1 for axis in axes))
    return figure


def stalest_update(run: Run) -> int:
    """Return the stalest update of an asynchronous run, away from its beginning and end."""
    train = run.metrics()
    inner = slice(len(train["step"]) // 5, -len(train["step"]) // 10)
    return int(train["step"][inner][np.argmax(train["staleness"][inner])])


def traffic_figure(run: Run, update: int) -> "Figure":
    """Draw what the workers and the parameter server did around one update, from the rows of the run.

    Each bar is a step of a worker: it reads the weights at its left end and writes its update at the right.

    Args:
        run: an asynchronous run.
        update: the step to explain, from 1.
    """
    train = run.metrics()
    end, version = train["wall_time"], train["step"].astype(int)
    begin = end - train["worker_seconds"]
    now = update - 1
    worker, stale = int(train["worker"][now]), int(train["staleness"][now])
    least = 10  # updates to show
    first = int(np.clip(now - max(least // 2, stale + 1), 0, max(0, len(end) - least)))
    shown = np.arange(first, min(max(first + least, now + 3), len(end)))
    zero = begin[shown].min()
    alt = f"Update {update} by worker {worker}, with a staleness of {stale}"
    with drawing(8.5, 3.0, alt) as figure:
        axis = figure.subplots()
        workers = np.unique(train["worker"]).astype(int)
        for index in shown:
            lane = len(workers) - 1 - int(train["worker"][index])
            left, width = 1000 * (begin[index] - zero), 1000 * (end[index] - begin[index])
            between = now - stale <= index < now
            colour = MARK if index == now else VALIDATION if between else "#cbd5e1"
            axis.barh(lane, width, left=left, height=0.45, color=colour)
            axis.annotate("", (left + width, len(workers) - 0.3), (left + width, lane + 0.25),
                          arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.2})  # fmt: skip
            axis.text(
                left + width, len(workers) - 0.22, str(version[index]), ha="center", va="bottom", fontsize=8
            )
        read = 1000 * (begin[now] - zero)
        lane = len(workers) - 1 - worker
        axis.annotate("", (read, lane + 0.25), (read, len(workers) - 0.3),
                      arrowprops={"arrowstyle": "->", "color": MARK, "linestyle": "--"})  # fmt: skip
        names = [*(f"worker {number}" for number in workers[::-1]), "parameter\nserver"]
        axis.set_yticks(range(len(workers) + 1), names)
        axis.set(ylim=(-0.5, len(workers) + 0.35), xlabel="milliseconds")
        others = f"{stale} updates" if stale != 1 else "1 update"
        axis.set_title(
            f"Update {update}: worker {worker} read version {update - 1 - stale} (dashed); "
            f"then others made {others}"
        )
    return figure


def speed_figure(cases: Mapping[str, tuple[float, float]]) -> "Figure":
    """Draw images per second, synchronous beside asynchronous, for each case."""
    with drawing(6.5, 2.8, "Images per second, synchronous and asynchronous: " + ", ".join(cases)) as figure:
        axis = figure.subplots()
        place = np.arange(len(cases))
        for offset, name, colour, number in (
            (-0.2, "synchronous", TRAIN, 0),
            (0.2, "asynchronous", VALIDATION, 1),
        ):
            bars = axis.bar(
                place + offset, [pair[number] for pair in cases.values()], 0.38, color=colour, label=name
            )
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks(place, list(cases))
        axis.set(title="Speed of all workers together", ylabel="images per second")
        axis.margins(y=0.15)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


# ---- networks ------------------------------------------------------------------------------------------


def bandwidth_figure(models: Mapping[str, tuple[float, float]], bandwidths: Sequence[float]) -> "Figure":
    """Draw the share of a step that is left for computing, by the bandwidth of the network.

    Args:
        models: by name, the bytes that a worker sends in a step and the seconds in which it computes it.
        bandwidths: bits per second, ascending.
    """
    with drawing(7.5, 3.0, "Share of a step spent computing, by bandwidth: " + ", ".join(models)) as figure:
        axis = figure.subplots()
        for number, (name, (sent, seconds)) in enumerate(models.items()):
            share = seconds / (seconds + sent * 8 / np.asarray(bandwidths))
            axis.semilogx(bandwidths, share, "o-", markersize=4, color=OKABE_ITO[number], label=name)
        axis.set(title="What a slow network costs", xlabel="bandwidth between two workers", ylim=(0, 1.05))
        axis.set_xticks(list(bandwidths), [_rate(bandwidth) for bandwidth in bandwidths])
        axis.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axis.set_ylabel("share of the step\nspent computing")
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend(loc="lower right")
    return figure


def seconds_over_links(runs: Mapping[str | None, Run]) -> dict[str | None, tuple[float, float]]:
    """Return for each run the median seconds of a step, and those of its computing and its bytes together.

    Args:
        runs: synchronous runs, by the rate of their links, such as ``10mbit``; None: without such a link.
    """
    found = {}
    for link, run in runs.items():
        rows = [rows[-1] for rows in worker_rows(run).values()]
        computing = max(row["own_seconds_per_step"] for row in rows)
        sending = rows[0]["bytes_sent_per_step"] * 8 / (check_link(link) or float("inf"))
        found[link] = float(np.median(run.metrics()["seconds_per_step"][2:])), computing + sending
    return found


def links_figure(seconds: Mapping[str | None, tuple[float, float]]) -> "Figure":
    """Draw the measured seconds of a step beside the expected ones of ``seconds_over_links``."""
    names = [_rate(check_link(link) or float("inf")) for link in seconds]
    with drawing(6.5, 2.8, f"Milliseconds of a step, measured and expected: {', '.join(names)}") as figure:
        axis, place = figure.subplots(), np.arange(len(seconds))
        for number, (name, colour) in enumerate(
            (("measured", TRAIN), ("computing + bytes ÷ rate", VALIDATION))
        ):
            values = [1000 * pair[number] for pair in seconds.values()]
            bars = axis.bar(place + 0.4 * number - 0.2, values, 0.38, color=colour, label=name)
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks(place, names)
        axis.set(title="The same steps over two links", ylabel="milliseconds a step")
        axis.margins(y=0.15)
        axis.legend(loc="upper right")
    return figure


def _rate(bits: float) -> str:
    if bits == float("inf"):
        return "loopback"
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
