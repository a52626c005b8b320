"""Project 2: a student's program predicts the seconds of all-reduces, and the check measures them afterwards.

The program defines ``predict(worker, cases)``. It runs in two worker processes, which have links of an
unknown rate and latency to measure, and it predicts for more workers than it has.
"""

import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from course.lessons.collectives.exchange import Through, halving_doubling
from course.lessons.verdict import Wrong, an_array
from course.lessons.workers import Worker, Workers, WorkersFailed
from labkit.cluster.hosts import why_no_hosts
from labkit.tables import print_table

WORKERS = 4  # that the check measures with; the program has two
SECONDS = 30.0  # for a program to measure and predict on one link, and for one all-reduce of the check
OFF = 0.3  # of the measured time, which a prediction may be off by
HINT_WITHIN = 0.4  # logarithm of a factor: other work makes the α that a program measures longer
ROUNDS = 4, 12  # least and most measurements of each time, of which the fastest counts


class Case(NamedTuple):
    """An all-reduce to predict: algorithm, number of workers, and bytes of each worker's array."""

    algorithm: str
    workers: int
    num_bytes: int


class Link(NamedTuple):
    """A link of each worker: megabits a second, and the seconds that a message costs its sender."""

    rate: int
    latency: float


# ---- what is predicted -------------------------------------------------------------------------------------


def tree(worker: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of all workers' arrays, [n]: reduced to worker 0 by a binomial tree, then broadcast."""
    distance = worker.size // 2
    while distance:
        if worker.rank < distance:
            array = array + worker.receive(worker.rank + distance)
        elif worker.rank < 2 * distance:
            worker.send(worker.rank - distance, array)
        distance //= 2
    distance = 1
    while distance < worker.size:
        if worker.rank < distance:
            worker.send(worker.rank + distance, array)
        elif worker.rank < 2 * distance:
            array = worker.receive(worker.rank - distance)
        distance *= 2
    return array


def ring(worker: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of all workers' arrays, [n], by a reduce-scatter and an all-gather around a ring."""
    count, rank = worker.size, worker.rank
    chunks = np.array_split(array, count)
    for step in range(2 * (count - 1)):
        worker.send((rank + 1) % count, chunks[(rank - step) % count])
        received, chunk = worker.receive((rank - 1) % count), (rank - step - 1) % count
        chunks[chunk] = chunks[chunk] + received if step < count - 1 else received
    return np.concatenate(chunks)


ALGORITHMS = {"tree": tree, "ring": ring, "halving-doubling": halving_doubling}


# ---- the check ---------------------------------------------------------------------------------------------


def check_program(program: Path, seed: int) -> str:
    """Return what was verified of a program. Raises Wrong with what isn't so, in one sentence.

    ``seed`` draws the links and the bytes. Prints each prediction beside what was measured.
    """
    why, random = why_no_hosts(), np.random.default_rng([2, seed])
    shaped = why is None
    print(
        f"{WORKERS} processes on links of a drawn rate, in network namespaces"
        if shaped
        else f"{WORKERS} processes over loopback that wait as on a link of a drawn rate: {why}"
    )
    near = Link(int(random.integers(20, 50)), random.uniform(0.001, 0.004))
    far = Link(int(random.integers(100, 200)), random.uniform(0.015, 0.03))
    small, *large = (
        32 * int(random.integers(*bounds)) for bounds in ((125, 500), (10_000, 20_000), (10_000, 20_000))
    )
    asked = [
        (link, [Case(name, WORKERS, size) for name in ALGORITHMS for size in sizes])
        for link, sizes in ((near, [large[0]]), (far, [small, large[1]]))
    ]
    predictions = [_predicted(program, link, cases, shaped) for link, cases in asked]
    if len(set(np.concatenate(predictions))) == 1:
        raise Wrong("every prediction is the same number; the times depend on algorithm, bytes and link")
    rows, errors = [], []
    for (link, cases), predicted in zip(asked, predictions, strict=True):
        measured = _measured(link, cases, predicted, shaped)
        for case, own, right in zip(cases, predicted, measured, strict=True):
            errors.append((abs(own / right - 1), link, case, own, right))
            numbers = f"{case.num_bytes:,}", f"{own:.3f}", f"{right:.3f}", f"{own / right - 1:+.0%}"
            rows.append((f"{link.rate} Mbit/s, {1e3 * link.latency:.0f} ms", case.algorithm, *numbers))
    header = ("link", "all-reduce by", "bytes", "predicted s", "measured s", "off by")
    print_table(header, rows, right=header[2:])
    worst, *about = max(errors)
    if worst > OFF:
        raise Wrong(_hint(*about))
    return f"{len(rows)} times of {WORKERS} workers, predicted by two of them, are off by at most {worst:.0%}"


def _predicted(program: Path, link: Link, cases: list[Case], shaped: bool) -> NDArray[np.float64]:
    """Return the program's seconds of each case. Its processes have ended before this returns."""
    with _workers(2, link, shaped) as workers:
        try:
            found = workers.run(_call, program, cases, link, shaped, seconds=SECONDS).results[0]
        except WorkersFailed as failed:
            raise Wrong(f"no predictions came, and nothing was measured: {failed}") from None
    seconds = an_array(found, (len(cases),), "what predict returns on worker 0")
    if seconds.min() <= 0:
        raise Wrong(f"a prediction is {seconds.min():g} s; each must be above 0")
    return seconds


def _call(worker: Worker, program: Path, cases: list[Case], link: Link, shaped: bool) -> Any:
    predict = runpy.run_path(str(program)).get("predict")
    if predict is None:
        raise NameError("the program defines no predict(worker, cases)")
    sys.addaudithook(_refuse_processes)
    return predict(_through(worker, link, shaped), cases)


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise an error where a program starts processes: they could time what it has to predict."""
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"):
        raise PermissionError("predict starts a process; measure messages between your two workers")


def _measured(
    link: Link, cases: list[Case], predicted: NDArray[np.float64], shaped: bool
) -> NDArray[np.float64]:
    """Return the seconds of each case until all workers have the sum.

    The cases take turns. Other work on the machine only makes them longer, so the fastest counts, and there
    are more rounds while one takes longer than predicted.
    """
    fastest = np.full(len(cases), np.inf)
    with _workers(WORKERS, link, shaped) as workers:
        for number in range(1, ROUNDS[1] + 1):
            rounds = [workers.run(_all_reduce, case, link, shaped, seconds=SECONDS) for case in cases]
            fastest = np.minimum(fastest, [max(done.seconds) for done in rounds])
            if number >= ROUNDS[0] and (predicted >= (1 - OFF) * fastest).all():
                break
    return fastest


def _all_reduce(worker: Worker, case: Case, link: Link, shaped: bool) -> None:
    ALGORITHMS[case.algorithm](_through(worker, link, shaped), np.ones(case.num_bytes // 8))


def _workers(count: int, link: Link, shaped: bool) -> Workers:
    return Workers(count, link=f"{link.rate}mbit" if shaped else None)


def _through(worker: Worker, link: Link, shaped: bool) -> Through:
    return Through(worker, delay=link.latency, seconds_a_byte=0.0 if shaped else 8e-6 / link.rate)


def _hint(link: Link, case: Case, own: float, right: float) -> str:
    """Return a sentence about a prediction that is off, with what it may have left out."""
    messages, arrays = {"tree": (4, 4.0), "ring": (6, 1.5), "halving-doubling": (4, 1.5)}[case.algorithm]
    waits, sends = messages * link.latency, 8e-6 * arrays * case.num_bytes / link.rate
    known = {
        "": right,  # off, but by nothing that is known
        "it is the time of the bytes alone; each message has its α as well": sends,
        "it is the time of the messages alone; their bytes count as well": waits,
        "a message there and back is two messages": 2 * right,
        "reduce-scatter and all-gather, or reduce and broadcast: both halves count": right / 2,
        "a message of the ring has 1 / N of the array": waits + 4 * sends,
        "a byte has 8 bits": waits + 8 * sends,
    }
    hint = min(known, key=lambda text: abs(np.log(own / known[text])))
    hint = f"; {hint}" if hint and abs(np.log(own / known[hint])) < HINT_WITHIN else ""
    return (
        f"by {case.algorithm}, {case.num_bytes:,} bytes take {right:.3f} s at {link.rate} Mbit/s and "
        f"{1e3 * link.latency:.0f} ms, predicted were {own:.3f} s; allowed: off by {OFF:.0%}{hint}"
    )
