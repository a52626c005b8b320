"""The figure of halving–doubling in lesson 10."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.replicas.figures import COMPLETE, SHADES
from labkit.figures.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
