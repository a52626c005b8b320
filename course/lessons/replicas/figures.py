"""The figures of lesson 04."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from course.lessons.plots import COMPLETE, SHADES
from course.lessons.replicas.moments import Placement
from course.lessons.replicas.ring import Exchange, Moment
from labkit.figures.style import GREY, MARK, OKABE_ITO, drawing


def ring_state(moment: Moment) -> Figure:
    """Draw the chunks of each worker after a step of a ring all-reduce, and what was sent in the step."""
    state = moment.contributions
    count = len(state)
    sums = [f"{''.join(_names(chunk))}" for worker in state for chunk in worker]
    alt = f"{moment.title}; chunks worker by worker: {', '.join(sums)}"
    arrived = {(message.receiver, message.chunk) for message in moment.messages}
    with drawing(7.0, 3.1, alt) as figure:
        axis = figure.add_subplot()
        axis.set_title(moment.title)
        for worker, chunks in enumerate(state):
            for chunk, contributions in enumerate(chunks):
                have, left = len(contributions), 1.5 * worker
                shade = SHADES[min(have - 1, len(SHADES) - 1)] if have < count else COMPLETE
                edge, width = (MARK, 2.2) if (worker, chunk) in arrived else ("#9ca3af", 0.8)
                axis.barh(chunk, 1, 0.8, left, align="center", color=shade, edgecolor=edge, linewidth=width)
                text = "+".join(f"{name}{chunk}" for name in _names(contributions))
                color, size = "white" if have == count else "#1f2328", 7.5 if have > 2 else 9
                axis.text(left + 0.5, chunk, text, ha="center", va="center", fontsize=size, color=color)
        for message in moment.messages:
            _draw_message(axis, message.sender, message.receiver, message.chunk)
        axis.set(xlim=(-0.3, count * 1.5 - 0.3), ylim=(count - 0.45, -0.75), yticks=[])
        workers = range(count)
        axis.set_xticks([1.5 * worker + 0.5 for worker in workers], [f"worker {n}" for n in workers])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def _names(contributions: set[int]) -> list[str]:
    return ["abcdefgh"[worker] for worker in sorted(contributions)]


def _draw_message(axis: Axes, sender: int, receiver: int, chunk: int) -> None:
    arrow = {"arrowstyle": "-|>", "color": MARK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    if receiver > sender:
        start, end = (1.5 * sender + 1.0, chunk), (1.5 * receiver, chunk)
    else:  # from the last worker around to the first, between two rows
        x, y = 1.5 * sender + 0.5, chunk - 0.5
        axis.plot([x, x, 1.5 * receiver - 0.2], [y + 0.1, y, y], color=MARK, linewidth=1.4)
        axis.plot([1.5 * receiver - 0.2] * 2, [y, chunk], color=MARK, linewidth=1.4)
        start, end = (1.5 * receiver - 0.2, chunk), (1.5 * receiver, chunk)
    axis.annotate("", xy=end, xytext=start, arrowprops=arrow)


def bytes_by_workers(exchanges: Mapping[str, Sequence[Exchange]]) -> Figure:
    """Draw, over the number of workers, the bytes that the busiest worker sends, and the steps in a row.

    Args:
        exchanges: by method, one for each number of workers from 2 on.
    """
    alt = (
        "Bytes sent by the busiest worker over the number of workers: all to all and one worker rise in "
        "a line, the ring stays below two array sizes; its steps rise"
    )
    with drawing(9.0, 3.4, alt) as figure:
        left, right = figure.subplots(1, 2)
        left.set(title="Bytes", xlabel="workers", ylabel="sent by the busiest worker\n(sizes of the array)")
        right.set(title="Steps", xlabel="workers", ylabel="messages in a row")
        for number, (name, found) in enumerate(exchanges.items()):
            workers = [len(exchange.results) for exchange in found]
            style = {"color": OKABE_ITO[number], "marker": "osD"[number], "markersize": 7 - 2 * number}
            sizes = [exchange.busiest_share for exchange in found]
            left.plot(workers, sizes, label=name, linewidth=3 - number, **style)
            right.plot(workers, [exchange.steps for exchange in found], label=name, **style)
        grid = np.arange(2, workers[-1] + 1)
        left.plot(grid, 2 * (grid - 1) / grid, color=GREY, linestyle=":", label="2 (N − 1) / N", zorder=5)
        for axis in (left, right):
            axis.grid(axis="y")
            axis.set_ylim(bottom=0)
        left.legend()
        right.legend()
    return figure


def placements(found: Sequence[Placement]) -> Figure:
    """Draw which devices hold a copy of a variable, for each strategy; a reader sees which one updates it."""
    # With GPUs, central storage is on the CPU, which computes no gradients.
    devices = [list(dict.fromkeys((*placement.replicas, *placement.copies))) for placement in found]
    most = max(map(len, devices))
    alt = "; ".join(
        f"{placement.strategy}: variable on {', '.join(map(_short, placement.copies))}" for placement in found
    )
    with drawing(9.0, 2.7, alt) as figure:
        axes = figure.subplots(1, len(found), squeeze=False)[0]
        for axis, placement, names in zip(axes, found, devices, strict=True):
            axis.set_title(f"{placement.strategy}\nvariable_strategy = {placement.variable_strategy}")
            for number, device in enumerate(names):
                computes = device in placement.replicas
                axis.bar(number + 0.4, 1.1, 0.9, -0.05, color="white", edgecolor=GREY)
                role = f"replica {number}: gradients" if computes else "no replica"
                write = functools.partial(axis.text, number + 0.4, ha="center", va="center")
                write(0.88, _short(device), fontweight="bold")
                write(0.62, role)
                if device in placement.copies:
                    box = {"facecolor": OKABE_ITO[0], "edgecolor": "none", "pad": 5}
                    write(0.2, "variable\n+ update", color="white", bbox=box)
                else:
                    write(0.2, "reads the variable", color=GREY)
            axis.set(xlim=(-0.15, most - 0.05), ylim=(-0.15, 1.15))
            axis.axis("off")
    return figure


def _short(device: str) -> str:
    return device.rpartition("device:")[2]


def two_curves(curves: Mapping[str, NDArray[np.float64]], every: int) -> Figure:
    """Draw losses over steps, one curve for each name. ``every``: steps between two values."""
    alt = f"Loss over steps: {', '.join(f'{name} ends at {v[-1]:.2f}' for name, v in curves.items())}"
    with drawing(6.4, 3.2, alt) as figure:
        axis = figure.add_subplot()
        for number, (name, values) in enumerate(curves.items()):
            steps = every * np.arange(len(values))
            axis.plot(steps, values, color=OKABE_ITO[number], linestyle=("-", "-", "--")[number], label=name)
        axis.set(xlabel="step", ylabel="loss of 1,000 images (nats)")
        axis.grid(axis="y")
        axis.legend()
    return figure


def rate_sweep(
    rates: Mapping[str, NDArray[np.float64]], right: Mapping[str, NDArray[np.float64]],
    wrong: Mapping[str, NDArray[np.float64]], factor: int,
) -> Figure:  # fmt: skip
    """Draw the loss after training over the learning rate, with the right loss and the scaled one.

    Args:
        rates: learning rates by panel.
        right, wrong: final losses by panel; those above 2.8 are drawn at the upper edge.
        factor: of the scaled loss.
    """
    alt = f"Loss after training over the learning rate, with the right loss and {factor} times it"
    with drawing(9.5, 3.3, alt) as figure:
        axes = figure.subplots(1, len(rates), sharey=True)
        for axis, (name, values) in zip(axes, rates.items(), strict=True):
            for losses, label, color, marker in (
                (right[name], "loss / global batch", OKABE_ITO[0], "o"),
                (wrong[name], f"loss × {factor}", OKABE_ITO[1], "s"),
            ):
                shown = np.minimum(losses, 2.8)
                hollow = losses > 2.8
                axis.plot(values, shown, color=color, label=label)
                axis.plot(values[~hollow], shown[~hollow], marker, color=color, markersize=5)
                axis.plot(values[hollow], shown[hollow], "x", color=color, markersize=6)
            axis.set(title=name, xscale="log", xlabel="learning rate (log)", ylim=(None, 2.85))
            axis.grid(axis="y")
        axes[0].set_ylabel("final loss (nats); × above 2.8")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def slice_spread(means: Mapping[int, NDArray], variances: Mapping[int, NDArray], channel: int) -> Figure:
    """Draw each replica's mean and variance of one channel, by the number of replicas.

    Args:
        means, variances: float64 [replicas, channels] by the number of replicas; 1 is the whole batch.
        channel: which one is drawn.
    """
    alt = f"Mean and variance of channel {channel} in each replica's slice: they spread as slices shrink"
    with drawing(8.6, 3.2, alt) as figure:
        panels = {"mean": means, "variance": variances}
        for axis, (name, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            whole = values[1][0, channel]
            axis.axhline(whole, color=OKABE_ITO[2], linewidth=1.5, label="all replicas, synchronized")
            for position, (replicas, found) in enumerate(values.items()):
                label = "one replica's slice" if position == 0 else None
                style = {"color": OKABE_ITO[1], "markersize": 5, "alpha": 0.8, "label": label}
                axis.plot([position] * replicas, found[:, channel], "o", **style)
            axis.set_xticks(range(len(values)), [str(replicas) for replicas in values])
            axis.set(title=f"Batch {name} of one channel", xlabel="replicas", ylabel=name)
            axis.margins(y=0.25)
            axis.grid(axis="y")
            axis.legend(loc="upper left")
    return figure


def steps_and_examples(
    batches: NDArray[np.int64], steps: NDArray[np.float64], noise: float, target: float
) -> Figure:
    """Draw the steps and the images that a target loss takes over the batch size, and the noise scale.

    Args:
        batches: batch sizes.
        steps: that the target took with the best learning rate of each batch size.
        noise: the measured gradient noise scale, in images.
        target: the loss, in nats.
    """
    alt = f"Steps and images to a loss of {target:g} over the batch size; noise scale {noise:.0f}"
    with drawing(9.0, 3.4, alt) as figure:
        left, right = figure.subplots(1, 2)
        for axis, values, name, color in (
            (left, steps, "steps", OKABE_ITO[0]),
            (right, steps * batches, "images", OKABE_ITO[1]),
        ):
            axis.plot(batches, values, "o-", color=color, label=f"{name} to a loss of {target:g}")
            axis.axvline(noise, color=GREY, linestyle="--", label=f"measured noise scale: {noise:.0f}")
            axis.set(xscale="log", yscale="log", xlabel="images in a batch (log)", ylabel=f"{name} (log)")
            axis.set_xticks(batches, [f"{batch:,}" for batch in batches])
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.minorticks_off()
            axis.grid()
            axis.legend()
        left.set_title("Steps: the time, with enough replicas")
        right.set_title("Images: the work of all replicas")
    return figure
