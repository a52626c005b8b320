"""All-reduce, simulated: who sends which part of the array to whom in each step, and how many bytes.

Nothing is assumed about the bytes: each simulation moves real NumPy arrays and counts what it moves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Message:
    """One worker sends a chunk of its array to another in one step."""

    step: int
    sender: int
    receiver: int
    chunk: int
    num_bytes: int


@dataclass
class Exchange:
    """What an all-reduce did: ``results``, the array of each worker at the end, and each message."""

    results: list[NDArray[Any]]
    messages: list[Message]

    @property
    def steps(self) -> int:
        """The number of steps that come after each other; messages of one step travel at the same time."""
        return max(message.step for message in self.messages)

    @property
    def busiest_share(self) -> float:
        """Bytes that the busiest worker sends, divided by those of the array."""
        sent = [0] * len(self.results)
        for message in self.messages:
            sent[message.sender] += message.num_bytes
        return max(sent) / self.results[0].nbytes


# A step: whether receivers add what they get to their own, and (sender, receiver, chunk) of each message.
Step = tuple[bool, list[tuple[int, int, int]]]


def all_to_all(workers: int) -> Iterator[Step]:
    """Yield the one step in which each worker sends its whole array to each other worker."""
    pairs = [(sender, receiver) for sender in range(workers) for receiver in range(workers)]
    yield True, [(sender, receiver, 0) for sender, receiver in pairs if sender != receiver]


def central(workers: int) -> Iterator[Step]:
    """Yield the steps of a sum on worker 0: all send to it, and it sends the sum back to each."""
    yield True, [(worker, 0, 0) for worker in range(1, workers)]
    yield False, [(0, worker, 0) for worker in range(1, workers)]


def ring(workers: int) -> Iterator[Step]:
    """Yield the steps of a ring: reduce-scatter, then all-gather (Patarasuk and Yuan, 2009).

    Each of the N workers splits its array into N chunks. In each of 2 (N − 1) steps each worker sends one
    chunk to the next worker. In the first half the receiver adds it to its own; in the second half it
    replaces it.
    """
    for step in range(1, 2 * workers - 1):
        adds = step < workers
        first = 1 - step if adds else workers + 1 - step
        yield adds, [(w, (w + 1) % workers, (w + first) % workers) for w in range(workers)]


METHODS = {"all to all": all_to_all, "one worker sums": central, "ring": ring}


def _steps(
    name: str, arrays: Sequence[NDArray[Any]]
) -> Iterator[tuple[list[Message], list[list[NDArray[Any]]]]]:
    """Sum arrays. Yields the messages of each step, and then the chunks of each worker."""
    parts = [np.array_split(array, len(arrays) if name == "ring" else 1) for array in arrays]
    for step, (adds, sends) in enumerate(METHODS[name](len(arrays)), 1):
        # All send at the same time, so nothing is changed before all have sent.
        sent = [(parts[sender][chunk], receiver, chunk) for sender, receiver, chunk in sends]
        for values, receiver, chunk in sent:
            parts[receiver][chunk] = parts[receiver][chunk] + values if adds else values.copy()
        yield [Message(step, *message, sent[n][0].nbytes) for n, message in enumerate(sends)], parts


def all_reduce(name: str, arrays: Sequence[NDArray[Any]]) -> Exchange:
    """Sum arrays, one for each worker and equal in shape [n], by one of ``METHODS``."""
    *steps, (last, parts) = _steps(name, arrays)
    messages = [message for sent, _ in steps for message in sent]
    return Exchange([np.concatenate(own) for own in parts], messages + last)


def count_exchanges(workers: Iterable[int]) -> dict[str, list[Exchange]]:
    """Sum arrays with each method and each number of workers, and check the sums.

    The arrays have 720,720 values, which all numbers up to 16 divide. Raises AssertionError for a wrong sum.
    """
    found: dict[str, list[Exchange]] = {name: [] for name in METHODS}
    for count in workers:
        arrays = [np.full(720720, worker, np.uint8) for worker in range(count)]
        for name in METHODS:
            exchange = all_reduce(name, arrays)
            assert all((result == sum(range(count))).all() for result in exchange.results), name
            found[name].append(exchange)
    return found


@dataclass(frozen=True)
class Moment:
    """The state of a ring after a step.

    ``contributions``: whose values are summed in each chunk, [worker][chunk], sets of worker numbers.
    ``messages``: of the step. ``title``: what the step was.
    """

    title: str
    contributions: list[list[set[int]]]
    messages: list[Message]


def ring_moments(workers: int) -> list[Moment]:
    """Return the start of a ring all-reduce and the state after each of its steps, for a drawing."""
    # Each chunk of worker w is row w of the identity, so the sum of chunks says whose they are.
    arrays = [np.tile(row, (workers, 1)) for row in np.eye(workers, dtype=int)]
    start = [[{worker}] * workers for worker in range(workers)]
    moments = [Moment("start: each worker has its own values", start, [])]
    for step, (messages, parts) in enumerate(_steps("ring", arrays), 1):
        half = "reduce-scatter" if step < workers else "all-gather"
        number = step if step < workers else step - (workers - 1)
        state = [[set(np.flatnonzero(chunk).tolist()) for chunk in own] for own in parts]
        moments.append(Moment(f"step {step}: {half} {number} of {workers - 1}", state, messages))
    return moments
