"""Messages that are changed on their way, and the two answers of exercises with which lesson 10 measures.

Its other algorithms are in its cells.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.plots import COMPLETE, SHADES
from course.lessons.workers import Worker
from labkit.figures.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPARSE = np.dtype([("index", np.int32), ("value", np.float32)])  # what top-k sends of an array


class Through:
    """A worker whose messages are changed or delayed on their way.

    Args:
        worker: whose messages they are.
        delay: seconds that each message costs its sender. A worker sends one message at a time, so two
            messages take twice the delay, as in the α–β model.
        seconds_a_byte: that a message costs its sender beside the delay, where no link is shaped.
        outgoing, incoming: what arrays become before they are sent, and after they were received.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        delay: float = 0.0,
        seconds_a_byte: float = 0.0,
        outgoing: Callable[[Any], Any] = lambda array: array,
        incoming: Callable[[Any], Any] = lambda array: array,
    ) -> None:
        self.rank, self.size = worker.rank, worker.size
        self._worker, self._outgoing, self._incoming = worker, outgoing, incoming
        self._delay, self._seconds_a_byte = delay, seconds_a_byte

    def send(self, to: int, array: Any) -> None:
        """Send an array to the worker ``to``; the delay is a span of the name ``to 2``."""
        with self._worker.span(f"to {to}"):
            time.sleep(self._delay + self._seconds_a_byte * getattr(array, "nbytes", 0))
            self._worker.send(to, self._outgoing(array))

    def receive(self, source: int) -> Any:
        """Return the next array from the worker ``source``."""
        return self._incoming(self._worker.receive(source))


def spoiled(worker: Worker, message: int | None) -> Through:
    """Return a worker to which a message is changed on its way, if it is worker 1. ``message``: from 0."""
    numbers = itertools.count()

    def incoming(values: Any) -> Any:
        return values + 1000 if next(numbers) == message and worker.rank == 1 else values

    return Through(worker, incoming=incoming)


def halving_doubling(worker: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of all workers' arrays, on each worker: answer 10.2.

    Recursive halving, then recursive doubling (Rabenseifner 2004; Thakur et al. 2005, section 4.5).

    Args:
        worker: of a number that is a power of two.
        array: float [n], of the same length on each worker.
    """
    *_, total = halving_doubling_moments(worker, array)
    return total


def halving_doubling_moments(worker: Any, array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the array before the first exchange of ``halving_doubling`` and after each."""
    array, part, exchanges = array.copy(), slice(0, len(array)), []
    yield array.copy()
    distance = worker.size // 2
    while distance:
        partner, middle = worker.rank ^ distance, (part.start + part.stop) // 2
        lower, upper = slice(part.start, middle), slice(middle, part.stop)
        part, given = (lower, upper) if worker.rank < partner else (upper, lower)
        worker.send(partner, array[given])
        array[part] += worker.receive(partner)
        exchanges.append((partner, part, given))
        distance //= 2
        yield array.copy()
    for partner, part, given in reversed(exchanges):
        worker.send(partner, array[part])
        array[given] = worker.receive(partner)
        yield array.copy()


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


def top_with_memory(
    gradient: NDArray[Any], memory: NDArray[Any], count: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return indices and values of the ``count`` largest of gradient + memory, and the new memory.

    It is answer 10.4: error feedback (Stich et al. 2018, algorithm 1). What isn't sent is added to the next
    gradient.

    Args:
        gradient, memory: float [n].
    """
    total = gradient + memory
    index = np.argpartition(-np.abs(total), count - 1)[:count]
    rest = total.copy()
    rest[index] = 0
    return index, total[index], rest
