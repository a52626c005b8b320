"""The tests of lesson 10's exercises: halving, an all-reduce between processes, the α–β model, top-k."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course.lessons.collectives.exchange import spoiled
from course.lessons.verdict import (
    Wrong,
    a_function,
    a_number,
    a_result,
    an_array,
    compare,
    draws,
    several,
    tests,
)
from course.lessons.workers import Round, Worker, run_answer

SIZES = (2, 4)  # numbers of workers; both are kept for the next check
LENGTH = 24  # of the arrays


def _run(answer: Callable[..., Any], arrays: list[NDArray[np.float64]], changed: int | None = None) -> Round:
    """Run the answer in real processes. ``changed``: which message to worker 1 the network spoils."""

    def call(worker: Worker, array: NDArray[np.float64]) -> Any:
        return answer(spoiled(worker, changed), array)

    return run_answer(len(arrays), call, each=[(array,) for array in arrays])


def _arrays(workers: int, seed: int) -> list[NDArray[np.float64]]:
    return list(draws(seed).normal(size=(workers, LENGTH)))


def _check_sent(found: Round, workers: int, messages: int, share: float) -> None:
    """Raise Wrong unless each worker sent ``messages``, and ``share`` of the bytes of its array."""
    size = 8 * LENGTH
    for worker in range(workers):
        count, sent = found.messages_sent[worker], found.bytes_sent[worker]
        if sent < 0.999 * share * size:
            raise Wrong(
                f"the values are right, but worker {worker} of {workers} sent {sent} of {size} bytes, fewer "
                "than possible; where do the values come from?"
            )
        if count > messages:
            raise Wrong(
                f"the values are right, but worker {worker} of {workers} sent {count} messages, allowed: "
                f"{messages}; exchange with the partners rank ^ distance only"
            )
        if sent > 1.001 * share * size:
            raise Wrong(
                f"the values are right, but worker {worker} of {workers} sent {sent / size:.2f} times its "
                f"array, allowed: {share:.2f}; send only the half that you give away"
            )


@tests("10.1", "reduce-scatter by halving, between processes")
def _reduce_scatter(answer: Any) -> str:
    function = a_function(answer)
    for workers in SIZES:
        arrays = _arrays(workers, 101)
        found = _run(function, arrays)
        chunks = np.split(np.sum(arrays, 0), workers)
        for worker, result in enumerate(found.results):
            what = f"what worker {worker} of {workers} returns"
            length = np.size(a_result(result, what))
            if length == LENGTH:
                raise Wrong(
                    f"{what} has {LENGTH} values; return only its chunk, {LENGTH // workers} values that are "
                    "complete"
                )
            values = an_array(result, (LENGTH // workers,), what)
            if np.allclose(values, chunks[worker]):
                continue
            if np.allclose(values, np.split(arrays[worker], workers)[worker]):
                raise Wrong(f"{what} is its own chunk; add what the partner sends")
            others = [chunk for chunk in range(workers) if np.allclose(values, chunks[chunk])]
            if others:
                raise Wrong(
                    f"{what} is the sum of chunk {others[0]}, not {worker}; who keeps the lower half, and "
                    "which distance is first? Halve with the farthest partner first"
                )
            raise Wrong(
                f"{what} isn't the sum of chunk {worker}; write down which range each worker has left after "
                "each exchange"
            )
        _check_sent(found, workers, workers.bit_length() - 1, (workers - 1) / workers)
    return "worker r has the sum of chunk r, after log₂ N messages and (N − 1) / N of the bytes, for 2 and 4"


@tests("10.2", "all-reduce by halving and doubling, between processes")
def _all_reduce(answer: Any) -> str:
    function = a_function(answer)
    for workers in SIZES:
        arrays = _arrays(workers, 102)
        found = _run(function, arrays)
        total = np.sum(arrays, 0)
        for worker, result in enumerate(found.results):
            what = f"what worker {worker} of {workers} returns"
            values = an_array(result, (LENGTH,), what)
            if np.allclose(values, total / workers):
                raise Wrong(f"{what} is the mean; return the sum")
            if not np.allclose(values, total):
                missing = int((~np.isclose(values, total)).sum())
                raise Wrong(
                    f"{what} differs from the sum in {missing} of {LENGTH} values; each doubling undoes one "
                    "halving, the last one first"
                )
        _check_sent(found, workers, 2 * (workers.bit_length() - 1), 2 * (workers - 1) / workers)
    for number in range(found.messages_sent[1]):
        spoiled = _run(function, arrays, changed=number).results
        if all(np.allclose(values, total) for values in spoiled):
            raise Wrong(
                f"the network changed message {number + 1} to worker 1, but no result; use what arrives"
            )
    return "every worker has the sum, after 2 log₂ N messages and 2 (N − 1) / N of the bytes, for 2 and 4"


@tests("10.3", "α, β and the crossover from a table of times")
def _crossover(answer: Any) -> str:
    function = a_function(answer)
    sizes = np.array([1e3, 1e4, 1e5, 1e6])
    random = draws(103)
    drawn = random.uniform(1e-4, 1e-2), random.uniform(1e-8, 1e-6), int(2 ** random.integers(4, 8))
    for alpha, beta, workers in ((2e-4, 8e-8, 4), (2e-2, 8e-8, 8), (5e-5, 1e-9, 64), drawn):
        wanted = "three numbers: α in seconds, β in seconds a byte, and the crossover in bytes"
        result = several(function(sizes.copy(), alpha + beta * sizes, workers), 3, wanted)
        found = [a_number(value, "each of your three numbers") for value in result]
        exchanged = "α and β are exchanged: np.polyfit gives the slope, β, first"
        compare(found[0], alpha, "α in seconds", [(beta, exchanged)], f"the table was made with {alpha:.3g}")
        compare(found[1], beta, "β in seconds a byte", [], f"the table was made with {beta:.3g}")
        tree, ring, equal = 2 * (workers.bit_length() - 1), 2 * (workers - 1), alpha / beta
        more = equal * (ring - tree)
        hints = (
            (equal, "this is α / β; it also depends on how many messages and bytes tree and ring have"),
            (more / (tree - ring), "a message of the ring has 1 / N of the array, not all of it"),
            (more / (tree / 2 - ring / workers), "log₂ N rounds to reduce, and as many to broadcast"),
        )
        what = f"the crossover of {workers} workers in bytes"
        otherwise = "they don't take the same time; solve 2 log₂ N (α + n β) = 2 (N − 1) (α + n β / N) for n"
        compare(found[2], more / (tree - ring / workers), what, hints, otherwise)
    return "α, β and the crossover were recovered for four links and 4 to 128 workers"


@tests("10.4", "top-k with error feedback")
def _top_with_memory(answer: Any) -> str:
    function = a_function(answer)
    random = draws(104)
    count, length = 3, 20
    steady = random.uniform(0.2, 2, length) * random.choice([-1, 1], length)
    memory, sent = np.zeros(length), np.zeros(length)
    steps = 60
    for step in range(1, steps + 1):
        gradient = steady + 0.1 * random.normal(size=length)
        before = gradient + memory
        index, values, memory = _compressed(function, gradient, memory, count)
        _check_choice(index, values, before, gradient, count)
        _check_memory(memory, index, before, step)
        sent[index] += values
        missing = int((sent == 0).sum())
    if missing:
        raise Wrong(f"after {steps} steps, {missing} of {length} values were never sent")
    return f"after each of {steps} steps, sent + kept is all that came, and each value was sent some time"


def _compressed(function: Callable[..., Any], gradient: Any, memory: Any, count: int) -> tuple[Any, Any, Any]:
    wanted = "three arrays: the indices, the values to send, and the new memory"
    result = several(function(gradient.copy(), memory.copy(), count), 3, wanted)
    index = an_array(result[0], (count,), "the array of indices").astype(int)
    if len(set(index.tolist())) < count or index.min() < 0 or index.max() >= len(gradient):
        raise Wrong(f"the indices are {index.tolist()}; expected {count} different ones from 0")
    return (
        index,
        an_array(result[1], (count,), "the array of values"),
        an_array(result[2], (len(gradient),), "the new memory"),
    )


def _check_choice(index: Any, values: Any, before: Any, gradient: Any, count: int) -> None:
    """Raise Wrong unless the largest of ``before`` = gradient + memory were chosen."""
    largest = [set(np.argsort(-key)[:count].tolist()) for key in (np.abs(before), before, np.abs(gradient))]
    if set(index.tolist()) != largest[0]:
        if set(index.tolist()) == largest[1]:
            raise Wrong("a large negative value counts as well; choose by the absolute value")
        if set(index.tolist()) == largest[2]:
            raise Wrong("you choose by the gradient alone, so what is kept never gets its turn; add it first")
        raise Wrong(f"these aren't the {count} largest absolute values of gradient + memory")
    if not np.allclose(values, before[index]):
        raise Wrong("the values that you send aren't gradient + memory at these indices")


def _check_memory(memory: Any, index: Any, before: Any, step: int) -> None:
    """Raise Wrong unless the memory is all of ``before`` that wasn't sent."""
    if not memory.any():
        raise Wrong(f"step {step}: the memory is empty, so what wasn't sent is lost")
    if np.allclose(memory, before):
        raise Wrong(f"step {step}: the memory still has what was sent, so it will be sent twice; set it to 0")
    rest = before.copy()
    rest[index] = 0
    if not np.allclose(memory, rest):
        raise Wrong(f"step {step}: sent + memory isn't gradient + old memory; keep all that isn't sent")
