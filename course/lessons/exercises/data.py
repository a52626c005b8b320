"""The exercises of lesson 01."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from course.lessons.data.records import record_fields, tfrecord
from course.lessons.verdict import Wrong, a_function, a_number, a_result, an_array, draws, tests


def _payloads_of(records: Any, data: bytes) -> list[bytes]:
    try:
        found = a_result(records(data))
    except ValueError as error:
        raise Wrong(
            f"an intact file raised ValueError: {error}; is the checksum that of the payload?"
        ) from None
    if not isinstance(found, list | tuple) or not all(isinstance(part, bytes) for part in found):
        kind = type(found).__name__
        raise Wrong(f"records(data) gave {kind}; expected a list of bytes, one payload for each record")
    return list(found)


@tests("01.1", "read the records of a file")
def _test_records(answer: Any) -> str:
    records, rng = a_function(answer), draws(11)
    for sizes in ((5,), (3, 40, 7), (300, 0, 70_000)):
        payloads = [rng.bytes(size) for size in sizes]
        found = _payloads_of(records, tfrecord(payloads))
        if len(found) != len(payloads):
            raise Wrong(
                f"a file of {len(payloads)} records with payloads of {sizes} bytes gave {len(found)}; the "
                "next record begins 8 + 4 + length + 4 bytes after this one, and the length has 8 bytes"
            )
        for mine, theirs in zip(found, payloads, strict=True):
            if mine != theirs and theirs and theirs in mine:
                raise Wrong("a payload comes with bytes around it: it begins 12 bytes after the record does")
            if mine != theirs:
                raise Wrong(
                    f"a payload of {len(theirs)} bytes came back as {len(mine)} others; the length is "
                    "little-endian, in 8 bytes"
                )
    intact = tfrecord([rng.bytes(20), rng.bytes(30)])
    for field in record_fields(intact)[2:]:
        _must_refuse(records, intact, field.start, "payload")
    _must_refuse(records, intact, record_fields(intact)[1].start, "length")
    return "every payload came back, of 0 to 70,000 bytes, and each changed checksum or payload was noticed"


def _must_refuse(records: Any, intact: bytes, position: int, name: str) -> None:
    changed = bytearray(intact)
    changed[position] ^= 4
    try:
        records(bytes(changed))
    except ValueError:
        return
    raise Wrong(
        f"byte {position} was changed, so the checksum of the {name} does not fit, and nothing was raised; "
        f"compare masked_crc of the {name}'s bytes with the 4 bytes behind them, and raise ValueError"
    )


def _order(epoch_order: Any, count: int, seed: int, epoch: int) -> np.ndarray:
    what = f"epoch_order({count}, {seed}, {epoch})"
    order = an_array(epoch_order(count, seed, epoch), (count,), what)
    if sorted(order.tolist()) != list(range(count)):
        missing = sorted(set(range(count)) - set(order.tolist()))
        raise Wrong(f"{what} leaves out {missing[:3]}; each of 0 … {count - 1} has to be there exactly once")
    return order.astype(np.int64)


@tests("01.3", "the order of an epoch")
def _test_epoch_order(answer: Any) -> str:
    epoch_order = a_function(answer)
    shared = np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    seed, epoch = (int(draws(13, low).integers(low, low + 4)) for low in (2, 6))
    first = _order(epoch_order, 97, seed, epoch)
    if not np.array_equal(first, _order(epoch_order, 97, seed, epoch)):
        raise Wrong("two calls with the same seed and epoch gave two orders; a resumed run would differ")
    if (np.random.get_state()[1].tolist(), random.getstate()) != shared:  # type: ignore[index]
        raise Wrong(
            "your function changes the random generator that the whole program shares; make one of its own, "
            "such as np.random.default_rng(…)"
        )
    if np.array_equal(first, _order(epoch_order, 97, seed, epoch + 1)):
        raise Wrong(f"epochs {epoch} and {epoch + 1} have the same order; the epoch has to count too")
    if np.array_equal(first, _order(epoch_order, 97, seed + 1, epoch)):
        raise Wrong(f"seeds {seed} and {seed + 1} have the same order; the seed has to count too")
    factors = (1, 10, 100, 1000, 10_000)  # of the seed, where the two are made one number
    for other in ((epoch, seed), (seed + 1, epoch - 1), *((seed - 1, epoch + each) for each in factors)):
        if np.array_equal(first, _order(epoch_order, 97, *other)):
            raise Wrong(
                f"seed {seed}, epoch {epoch} has the order of seed {other[0]}, epoch {other[1]}: making one "
                "number of the two makes runs share epochs; give both to the generator, as a pair"
            )
    steps = np.diff(np.append(first, first[0])) % 97
    if len(set(steps.tolist())) < 20:
        raise Wrong("neighbours stay neighbours in your order; a rotation or a reversal does not shuffle")
    _order(epoch_order, 1, 0, 0)
    _order(epoch_order, 1000, 0, 10**6)
    return (
        "each epoch has every example once, and its order depends on the seed and the epoch, on nothing else"
    )


def _newest(buffer: int, examples: int, batch: int) -> int:
    """Return the newest example that a shuffle buffer holds when the last one of the first batch is drawn."""
    read = min(buffer, examples)
    for _ in range(batch - 1):
        read = min(read + 1, examples)  # each draw makes room for one more
    return read - 1


@tests("01.4", "how big a shuffle buffer must be")
def _test_buffer(answer: Any) -> str:
    buffer_needed = a_function(answer)
    drawn = draws(14).integers(2, 400, (3, 2)).tolist()
    for examples, batch in ((50_000, 128), (10, 3), (9, 1), (1281, 256), (64, 64), (3, 5), *drawn):
        what = f"buffer_needed({examples}, {batch})"
        buffer = a_number(buffer_needed(examples, batch), what)
        if buffer < 1 and examples < batch:
            raise Wrong(f"{what} is {buffer:g}; a file may have fewer examples than a batch: at least 1")
        if buffer != int(buffer) or buffer < 1:
            raise Wrong(f"{what} is {buffer:g}; a buffer holds a whole number of examples, at least 1")
        newest = _newest(int(buffer), examples, batch)
        if newest < examples - 1:
            raise Wrong(
                f"with {what} = {buffer:g}, the newest example that can be in the first batch is number "
                f"{newest}, and the last one of the file is number {examples - 1}"
            )
        if buffer == examples and batch > 1:
            raise Wrong(
                f"{what} = {buffer:g} holds the whole file: enough, but not the smallest, because the buffer "
                "is filled up again after each of the draws that make the first batch"
            )
        if buffer > 1 and _newest(int(buffer) - 1, examples, batch) == examples - 1:
            raise Wrong(f"{what} = {buffer:g} is enough, but {buffer - 1:g} is too; count the draws again")
    return "with this buffer the last example can be in the first batch, and with one place less it can't"


Stages = Sequence[tuple[float, int]]


def _simulated(stages: Stages, overlapped: bool) -> float:
    """Return the seconds per batch of a chain of stages, found by letting batches go through it."""
    if not overlapped:
        return sum(seconds for seconds, _ in stages)
    workers = [[0.0] * copies for _, copies in stages]
    ends, half = [], 300
    for _ in range(2 * half):
        ready = 0.0
        for (seconds, _), free in zip(stages, workers, strict=True):
            first = min(range(len(free)), key=free.__getitem__)
            ready = free[first] = max(ready, free[first]) + seconds
        ends.append(ready)
    return (ends[-1] - ends[half - 1]) / half


@tests("01.2", "predict the time of a batch")
def _test_seconds(answer: Any) -> str:
    function, rng = a_function(answer), draws(5)
    chains: list[Stages] = [[(0.03, 1), (0.01, 1), (0.02, 1), (0.05, 1)], [(0.08, 4), (0.012, 1), (0.015, 1)]]
    for _ in range(4):
        chains.append([(float(rng.uniform(0.01, 0.1)), int(rng.integers(1, 5))) for _ in range(4)])
    for stages in chains:
        for overlapped in (False, True):
            found = a_number(function(stages, overlapped), f"seconds_per_batch({stages}, {overlapped})")
            expected = _simulated(stages, overlapped)
            if not np.isclose(found, expected, rtol=0.02):
                raise Wrong(_hint(stages, overlapped, found, expected))
    return "your times are those of simulated chains of three and four stages, within 2 %"


def _hint(stages: Stages, overlapped: bool, found: float, expected: float) -> str:
    total, slowest = sum(seconds for seconds, _ in stages), max(seconds for seconds, _ in stages)
    shown = [(round(seconds, 3), copies) for seconds, copies in stages]
    if overlapped and np.isclose(found, total):
        return "overlapped stages work on different batches at the same time, so their times don't add up"
    if overlapped and np.isclose(found, slowest):
        return "a stage with several copies finishes several batches in its time: divide by the copies"
    if not overlapped and found < expected:
        return (
            f"without overlap one batch goes through all stages before the next begins, and copies stand "
            f"idle: {shown} takes {expected:.3f} s, not {found:.3f}"
        )
    return f"the chain {shown} with overlapped={overlapped} takes {expected:.3f} s a batch, not {found:.3f}"
