"""All-reduce, simulated: who sends which part of the array to whom in each step, and how many bytes.

Nothing is assumed about the bytes: each simulation moves real NumPy arrays and counts what it moves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Message:
    """One worker sends bytes to another in one step. ``chunk``: which part of the array; None: all of it."""

    step: int
    sender: int
    receiver: int
    num_bytes: int
    chunk: int | None = None


@dataclass
class Exchange:
    """What an all-reduce did: ``results``, the array of each worker at the end, and each message."""

    results: list[NDArray[Any]]
    messages: list[Message] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """The number of steps that come after each other; messages of one step travel at the same time."""
        return max(message.step for message in self.messages)

    def sent(self, worker: int) -> int:
        """Bytes that a worker sends in all steps."""
        return sum(message.num_bytes for message in self.messages if message.sender == worker)

    @property
    def busiest_share(self) -> float:
        """Bytes that the busiest worker sends, divided by those of the array."""
        return max(self.sent(worker) for worker in range(len(self.results))) / self.results[0].nbytes


@dataclass(frozen=True)
class Moment:
    """The state of a ring after a step.

    ``contributions``: whose values are summed in each chunk, [worker][chunk], sets of worker numbers.
    ``messages``: of the step. ``title``: what the step was.
    """

    title: str
    contributions: list[list[frozenset[int]]]
    messages: list[Message]


def ring(arrays: Sequence[NDArray[Any]]) -> Exchange:
    """Sum arrays over a ring: reduce-scatter, then all-gather (Patarasuk and Yuan, 2009).

    Each of the N workers splits its array into N chunks. In each of 2 (N − 1) steps each worker sends one
    chunk to the next worker. In the first half the receiver adds it to its own; in the second half it
    replaces it.

    Args:
        arrays: one for each worker, equal in shape [n].
    """
    return _ring(arrays, lambda chunk, received: chunk + received)


def ring_moments(workers: int) -> list[Moment]:
    """Return the start of a ring all-reduce and the state after each of its steps, for a drawing."""
    names = [np.array([{worker}] * workers, dtype=object) for worker in range(workers)]
    moments = [Moment("start: each worker has its own values", _contributions(names), [])]

    def after(step: int, parts: list[list[NDArray[Any]]], messages: list[Message]) -> None:
        first = step < workers
        half = "reduce-scatter" if first else "all-gather"
        number = step if first else step - (workers - 1)
        title = f"step {step}: {half} {number} of {workers - 1}"
        state = [np.array([chunk[0] for chunk in own], dtype=object) for own in parts]
        moments.append(Moment(title, _contributions(state), messages))

    _ring(names, lambda chunk, received: np.array([chunk[0] | received[0]], dtype=object), after)
    return moments


def _ring(
    arrays: Sequence[NDArray[Any]],
    add: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
    after: Callable[[int, list[list[NDArray[Any]]], list[Message]], None] | None = None,
) -> Exchange:
    workers = len(arrays)
    parts = [list(np.array_split(array, workers)) for array in arrays]
    exchange = Exchange([])
    for step in range(1, 2 * workers - 1):
        adds = step < workers
        sent = []
        for worker in range(workers):  # all send at the same time, so nothing is changed before all have sent
            chunk = (worker + 1 - step if adds else worker + workers + 1 - step) % workers
            sent.append((worker, chunk, parts[worker][chunk].copy()))
        messages = []
        for worker, chunk, values in sent:
            receiver = (worker + 1) % workers
            own = parts[receiver]
            own[chunk] = add(own[chunk], values) if adds else values
            messages.append(Message(step, worker, receiver, values.nbytes, chunk))
        exchange.messages += messages
        if after is not None:
            after(step, parts, messages)
    exchange.results = [np.concatenate(own) for own in parts]
    return exchange


def _contributions(arrays: Sequence[NDArray[Any]]) -> list[list[frozenset[int]]]:
    return [[frozenset(chunk) for chunk in array] for array in arrays]


def all_to_all(arrays: Sequence[NDArray[Any]]) -> Exchange:
    """Sum arrays in one step: each worker sends its whole array to each other worker."""
    workers = range(len(arrays))
    exchange = Exchange([array.copy() for array in arrays])
    for sender in workers:
        for receiver in workers:
            if sender != receiver:
                exchange.results[receiver] = exchange.results[receiver] + arrays[sender]
                exchange.messages.append(Message(1, sender, receiver, arrays[sender].nbytes))
    return exchange


def central(arrays: Sequence[NDArray[Any]]) -> Exchange:
    """Sum arrays on worker 0: all send to it, and it sends the sum back to each."""
    total = arrays[0].copy()
    exchange = Exchange([])
    for worker in range(1, len(arrays)):
        total = total + arrays[worker]
        exchange.messages.append(Message(1, worker, 0, arrays[worker].nbytes))
    for worker in range(1, len(arrays)):
        exchange.messages.append(Message(2, 0, worker, total.nbytes))
    exchange.results = [total.copy() for _ in arrays]
    return exchange


EXCHANGES: dict[str, Callable[[Sequence[NDArray[Any]]], Exchange]] = {
    "all to all": all_to_all,
    "one worker sums": central,
    "ring": ring,
}


def count_exchanges(workers: Iterable[int]) -> dict[str, list[Exchange]]:
    """Sum arrays with each method and each number of workers, and check the sums.

    The arrays have 720,720 values, which all numbers up to 16 divide. Raises AssertionError for a wrong sum.
    """
    found: dict[str, list[Exchange]] = {name: [] for name in EXCHANGES}
    for count in workers:
        arrays = [np.full(720720, worker, np.uint8) for worker in range(count)]
        for name, all_reduce in EXCHANGES.items():
            exchange = all_reduce(arrays)
            assert all((result == sum(range(count))).all() for result in exchange.results), name
            found[name].append(exchange)
    return found
