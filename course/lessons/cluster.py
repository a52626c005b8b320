"""Computations and figures of lesson 05: a lost worker, staleness, traffic, slow workers, slow networks."""

import itertools
import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.hosts import BURST_SECONDS, SMALLEST_BURST, check_link
from labkit.figures.style import GREY, MARK, OKABE_ITO, TRAIN, VALIDATION, drawing
from labkit.notebook.background import BackgroundTraining
from labkit.run import Run
from labkit.run_directory import RunDirectory
from labkit.run_directory.worker_metrics import read_worker_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
SESSIONS = ("before the loss", "after the restart")


# ---- what a run recorded -------------------------------------------------------------------------------


def every_row(run: Run) -> list[dict[str, Any]]:
    """Return the training rows of a run as they were written, those of lost steps included."""
    return [row for row in lines_of(run) if row.get("split") == "train"]


def lines_of(run: Run) -> list[dict[str, Any]]:
    """Return all rows of ``metrics.jsonl`` as they were written."""
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def sessions(run: Run) -> list[list[dict[str, Any]]]:
    """Return ``every_row``, parted at each restart.

    The steps alone don't show a restart that lost none, because a checkpoint had just been saved.
    """
    parts = list[list[dict[str, Any]]]([[]])
    for row in lines_of(run):
        if "resumed_at_step" in row and parts[-1]:
            parts.append([])
        elif row.get("split") == "train":
            parts[-1].append(row)
    return [part for part in parts if part]


def worker_sessions(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that each worker wrote, one a second, by its name and whether it was restarted."""
    parts = dict[str, list[dict[str, Any]]]()
    starts = [part[0]["wall_time"] for part in sessions(run)[1:]]
    for name, rows in read_worker_metrics(RunDirectory(run.path).cluster_path).items():
        for row in rows:
            session = SESSIONS[any(row["wall_time"] >= start for start in starts)]
            parts.setdefault(f"{name}, {session}", []).append(row)
    return parts


def step_seconds(run: Run) -> Floats:
    """Return the median seconds of each worker's steps in an asynchronous run: float64 [workers]."""
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
    two, one = killed.metrics(), alone.metrics()
    difference = np.abs(two["loss"] - one["loss"])
    alt = (
        f"Losses of the killed cluster and of one process; they differ by {difference.max():.2g} nats at most"
    )
    with drawing(9.5, 3.0, alt) as figure:
        losses, gaps = figure.subplots(1, 2, width_ratios=(3, 2))
        losses.plot(one["step"], one["loss"], color=VALIDATION, linewidth=4, alpha=0.5, label="one process")
        losses.plot(two["step"], two["loss"], color=TRAIN, linewidth=1.2, label="two workers, one killed")
        losses.set(title="Training loss", xlabel="step", ylabel="nats", ylim=(0, None))
        losses.legend()
        gaps.semilogy(two["step"], np.maximum(difference, 1e-9), color=GREY)
        gaps.set(title="Difference of the two", xlabel="step", ylabel="nats", ylim=(1e-9, 10))
        gaps.grid(axis="y")
    return figure


def price_of_a_loss(run: Run) -> "Figure":
    """Draw the step over time of a run that lost a worker: lost steps, the pause, the steps made again."""
    alt = "Step over time: training pauses after the loss and goes on from a checkpoint"
    with drawing(7.5, 2.9, alt) as figure:
        axis, parts = figure.subplots(), sessions(run)
        begin = parts[0][0]["wall_time"]
        curves = [
            (np.array([row["wall_time"] - begin for row in part]), np.array([row["step"] for row in part]))
            for part in parts
        ]
        for number, (time, step) in enumerate(curves):
            axis.plot(time, step, ".-", markersize=4, color=OKABE_ITO[number % 7],
                      label=SESSIONS[number > 0])  # fmt: skip
        for (time, step), (later, first) in itertools.pairwise(curves):
            axis.axvspan(time[-1], later[0], color=GREY, alpha=0.15, linewidth=0)
            axis.text((time[-1] + later[0]) / 2, 2, "restart of\nall tasks", ha="center", color="#374151",
                      fontsize=8)  # fmt: skip
            lost = step >= first[0]
            if lost.any():
                axis.plot(time[lost], step[lost], "x", color=MARK, markersize=6, label="lost, made again")
        axis.set(title="The price of a lost worker", ylabel="step", ylim=(0, None))
        axis.set_xlabel("seconds since the first step")
        axis.legend(loc="lower right")
    return figure


# ---- asynchronous workers ------------------------------------------------------------------------------


def staleness_figure(run: Run) -> "Figure":
    """Draw the histogram of staleness of an asynchronous run, with a colour for each worker."""
    with drawing(7.5, 2.9, "Histogram of staleness") as figure:
        axis, train = figure.subplots(), run.metrics()
        bins = np.arange(int(train["staleness"].max()) + 1)
        below = np.zeros(len(bins), int)
        for worker in np.unique(train["worker"]):
            mine = train["staleness"][train["worker"] == worker].astype(int)
            counts = np.bincount(mine, minlength=len(bins))
            label = f"worker {worker:.0f}: {len(mine)} updates, mean {mine.mean():.1f}"
            axis.bar(bins, counts, bottom=below, color=OKABE_ITO[int(worker)], label=label)
            below += counts
        axis.set(title="Staleness of each update", ylabel="updates", xticks=bins)
        axis.set_xlabel("staleness: updates by others since the read")
        axis.legend()
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
    train, now, least = run.metrics(), update - 1, 10  # updates to show
    worker, stale = int(train["worker"][now]), int(train["staleness"][now])
    first = int(np.clip(now - max(least // 2, stale + 1), 0, max(0, len(train["step"]) - least)))
    shown = np.arange(first, min(max(first + least, now + 3), len(train["step"])))
    begin, end = train["wall_time"] - train["worker_seconds"], train["wall_time"]
    begin, end = 1000 * (begin - begin[shown].min()), 1000 * (end - begin[shown].min())
    with drawing(8.5, 3.0, f"Update {update} by worker {worker}, with a staleness of {stale}") as figure:
        axis, workers = figure.subplots(), np.unique(train["worker"]).astype(int)
        top = len(workers)  # the lane of the server; the workers' are below it, the first one on top
        for index in shown:
            lane = top - 1 - int(train["worker"][index])
            colour = MARK if index == now else VALIDATION if now - stale <= index < now else "#cbd5e1"
            axis.barh(lane, end[index] - begin[index], left=begin[index], height=0.45, color=colour)
            axis.annotate("", (end[index], top - 0.3), (end[index], lane + 0.25),
                          arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.2})  # fmt: skip
            axis.text(end[index], top - 0.22, str(index + 1), ha="center", va="bottom", fontsize=8)
        axis.annotate("", (begin[now], top - 1 - worker + 0.25), (begin[now], top - 0.3),
                      arrowprops={"arrowstyle": "->", "color": MARK, "linestyle": "--"})  # fmt: skip
        names = [*(f"worker {number}" for number in workers[::-1]), "parameter\nserver"]
        axis.set_yticks(range(top + 1), names)
        axis.set(ylim=(-0.5, top + 0.35), xlabel="milliseconds")
        others = f"{stale} updates" if stale != 1 else "1 update"
        read = f"worker {worker} read version {now - stale} (dashed)"
        axis.set_title(f"Update {update}: {read}; then others made {others}")
    return figure


def pairs_figure(pairs: Mapping[str, tuple[float, float]], names: Sequence[str], **axes: str) -> "Figure":
    """Draw two bars for each case.

    Args:
        pairs: the two values, by case.
        names: of the first value and of the second.
        axes: ``title`` and ``ylabel``.
    """
    with drawing(6.5, 2.8, f"{axes['title']}, {' and '.join(names)}: {', '.join(pairs)}") as figure:
        axis, place = figure.subplots(), np.arange(len(pairs))
        for number, name in enumerate(names):
            values = [pair[number] for pair in pairs.values()]
            bars = axis.bar(place + 0.4 * number - 0.2, values, 0.38, color=OKABE_ITO[number], label=name)
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks(place, list(pairs))
        axis.set(**axes)
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
        names = [f"{b / 1e9:g} Gbit/s" if b >= 1e9 else f"{b / 1e6:g} Mbit/s" for b in bandwidths]
        axis.set_xticks(list(bandwidths), names)
        axis.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axis.set_ylabel("share of the step\nspent computing")
        axis.minorticks_off()
        axis.grid(axis="y")
        axis.legend(loc="lower right")
    return figure


def set_links(training: BackgroundTraining, rate: str) -> None:
    """Give all links of a running cluster another rate, in both directions, such as ``10mbit``.

    Args:
        training: a cluster that was started with ``link``.
        rate: as of ``labkit.start(link=…)``.

    Each host is a port of a bridge, whose namespace the launcher names in its output. What a port lets
    through is what its host receives; a queue of a second loses no packet. Raises CalledProcessError if this
    machine's ``tc`` refuses.
    """
    bits = check_link(rate) or 0.0
    burst = max(SMALLEST_BURST, int(bits / 8 * BURST_SECONDS))
    described = next(line for line in training.output if "their network: " in line)
    enter = described.partition("their network: ")[2].split()[:-2]  # without "bridge link"
    for worker in training.workers:
        port = worker.replace(":", "-")
        shape = f"tc qdisc change dev {port} root tbf rate {bits:.0f}bit burst {burst}b latency 1s"
        subprocess.run([*enter, *shape.split()], check=True, timeout=30, capture_output=True)


def seconds_over_links(run: Run, links: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the median seconds of a step over each link, and those of its computing and its bytes together.

    Args:
        run: a synchronous run.
        links: the rate in each of its sessions, such as ``10mbit``. The first two steps of a session don't
            count: TensorFlow compiles in them.
    """
    rows = [row for rows in worker_sessions(run).values() for row in rows]
    computing = float(np.median([row["own_seconds_per_step"] for row in rows]))
    sent, found = rows[-1]["bytes_sent_per_step"], {}
    for link, session in zip(links, sessions(run), strict=False):
        measured = float(np.median([row["seconds_per_step"] for row in session[min(2, len(session) - 1) :]]))
        found[link] = measured, computing + sent * 8 / (check_link(link) or float("inf"))
    return found
