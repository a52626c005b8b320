"""The exercises of lesson 05: clusters."""

import json
from typing import Any

import numpy as np

from course.lessons.verdict import Wrong, a_function, a_number, an_array, draws, tests
from labkit.distributed.task import make_tf_config, parse_tf_config
from labkit.errors import InputError

WORKERS = (
    ("a:2222", "b:2222", "c:2222"),
    ("10.0.0.1:5", "10.0.0.2:5", "10.0.0.3:7", "10.0.0.4:7"),
    ("d:1", "e:1"),
)
SERVERS: tuple[tuple[str, ...], ...] = (("p:2222",), ("q:1", "r:1"), ())


@tests("05.1", "TF_CONFIG of any task of a cluster")
def _tf_config(answer: Any) -> str:
    function = a_function(answer)
    drawn = tuple(f"h{number}:{number}" for number in draws(51).integers(1000, 9000, 5))
    for workers, servers in zip((*WORKERS, drawn[:3]), (*SERVERS, drawn[3:]), strict=True):
        for job, index in (("worker", 1), ("ps", 0), ("worker", len(workers) - 1)):
            if job == "ps" and not servers:
                continue
            text = function(list(workers), list(servers), job, index)
            _check_tf_config(text, workers, servers, job, index)
    return "labkit and TensorFlow read it: every task finds itself and all the others, in four clusters"


def _check_tf_config(text: Any, workers: Any, servers: Any, job: str, index: int) -> None:
    if isinstance(text, dict):
        raise Wrong("your function returns a dict; an environment variable is text, so use json.dumps")
    if not isinstance(text, str):
        raise Wrong(f"your function returns {type(text).__name__}; expected a text in JSON")
    try:
        task = parse_tf_config(text)
    except InputError as error:
        raise Wrong(f"labkit refuses it: {error}") from None
    if task is None:
        raise Wrong('it doesn\'t say which task this is; add "task" with "type" and "index" beside "cluster"')
    if not servers and "ps" in json.loads(text)["cluster"]:
        raise Wrong(
            'a cluster without parameter servers has no job "ps"; leave it out: with an empty list '
            "TensorFlow crashes when it starts"
        )
    if dict(task.jobs) != ({"worker": workers, "ps": servers} if servers else {"worker": workers}):
        raise Wrong(
            'the addresses differ; "cluster" needs the lists "worker" and "ps", the same in every process'
        )
    if task.job_name != job:
        raise Wrong(f'asked for task {index} of {job!r}, it describes {task.name}; "type" is the job\'s name')
    if task.task_index != index:
        raise Wrong(f"asked for {job}:{index}, it describes {task.name}; indices begin with 0 in each job")
    if isinstance(json.loads(text)["task"].get("index"), str):
        raise Wrong(
            f'"index" is the text "{index}"; write the number {index}: TensorFlow converts a text, other '
            "programs may not"
        )
    assert parse_tf_config(make_tf_config(task)) == task


@tests("05.2", "The slice of a global batch that a worker computes")
def _slices(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(52).integers((20, 2), (300, 20), (3, 2)).tolist()
    for batch, workers in ((32, 2), (128, 4), (10, 3), (7, 7), (50, 8), (5, 1), *drawn):
        counts = np.zeros(batch, int)
        sizes = []
        for worker in range(workers):
            what = f"your slice of worker {worker} of {workers}"
            first, last = an_array(function(batch, workers, worker), (2,), what)
            if first != round(first) or last != round(last):
                raise Wrong(f"{what} is [{first:g}, {last:g}]; an example can't be divided: use //")
            if not 0 <= first <= last <= batch:
                raise Wrong(f"{what} of {batch} examples is [{first:g}, {last:g}], outside of the batch")
            counts[int(first) : int(last)] += 1
            sizes.append(int(last - first))
        shown = f"with {batch} examples and {workers} workers"
        if (counts > 1).any():
            raise Wrong(
                f"{shown}, example {int(np.argmax(counts > 1))} goes to two workers; stop is exclusive"
            )
        if (counts == 0).any():
            raise Wrong(f"{shown}, example {int(np.argmax(counts == 0))} goes to nobody; who takes the rest?")
        if max(sizes) - min(sizes) > 1:
            raise Wrong(
                f"{shown}, the slices have {sizes} examples; spread the rest, the slowest sets the pace"
            )
    return "every example goes to exactly one worker, and no worker gets two more than another"


@tests("05.3", "The staleness of updates from a log of reads and writes")
def _staleness(answer: Any) -> str:
    function = a_function(answer)
    random = draws(5)
    logs = [[("read", 0), ("write", 0)], [("read", 0), ("read", 1), ("write", 1), ("write", 0)]]
    logs += [_made_log(random, workers) for workers in (2, 3, 5)]
    for log in logs:
        expected, reads = _staleness_of(log), [sum(what == "read" for what, _ in log)]
        shown = log if len(log) < 6 else f"a log of {len(log)} entries"
        found = an_array(function(list(log)), (len(expected),), f"your result for {shown}")
        if (found == expected).all():
            continue
        if (found == np.arange(len(expected))).all():
            raise Wrong(
                f"for {shown} you count all earlier writes; count those since this worker's last read"
            )
        if (found == np.add(expected, 1)).all():
            raise Wrong(f"for {shown} you count the update itself; an update that nobody disturbed has 0")
        if reads and (found == _reads_between(log)).all():
            raise Wrong(f"for {shown} you count the reads of others; only writes change the weights")
        raise Wrong(f"for {shown} expected {expected[:8]}, got {found.astype(int).tolist()[:8]}")
    return (
        "right for logs of one to five workers; without a limit, staleness grows with the number of workers"
    )


def _made_log(random: np.random.Generator, workers: int) -> list[tuple[str, int]]:
    """Return a log in which each worker reads and writes in turn, at random moments."""
    reading, log = [False] * workers, []
    for _ in range(40):
        worker = int(random.integers(workers))
        log.append(("write" if reading[worker] else "read", worker))
        reading[worker] = not reading[worker]
    return log


def _staleness_of(log: list[tuple[str, int]]) -> list[int]:
    version, seen, found = 0, {}, []
    for what, worker in log:
        if what == "read":
            seen[worker] = version
        else:
            found.append(version - seen[worker])
            version += 1
    return found


def _reads_between(log: list[tuple[str, int]]) -> list[int]:
    found = []
    for number, (what, worker) in enumerate(log):
        if what == "write":
            since = max(at for at in range(number) if log[at] == ("read", worker))
            found.append(sum(kind == "read" for kind, _ in log[since + 1 : number]))
    return found


@tests("05.4", "Images per second of equal and slow workers, synchronous and asynchronous")
def _rates(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(54).uniform(0.1, 1, 5).round(2).tolist()
    for seconds in ([0.1, 0.1], [0.1, 0.3], [0.2, 0.2, 0.5, 0.25], [1.0], drawn):
        for images in (16, 50):
            sync, asynchronous = an_array(
                function(list(seconds), images), (2,), f"your result for {seconds} s and {images} images"
            )
            _check_rates(seconds, images, sync, asynchronous)
    return "a slow worker holds back all synchronous ones, and only itself where nobody waits"


def _check_rates(seconds: list[float], images: int, sync: float, asynchronous: float) -> None:
    shown, count = f"for steps of {seconds} s", len(seconds)
    if not np.isclose(sync, count * images / max(seconds)):
        if np.isclose(sync, count * images / np.mean(seconds)):
            raise Wrong(f"{shown} you divide by the mean time; who does everybody wait for?")
        if np.isclose(sync, images / max(seconds)):
            raise Wrong(
                f"{shown} you count the images of one worker; all {count} finish in a synchronous step"
            )
        raise Wrong(
            f"{shown} the synchronous rate is {count * images / max(seconds):g}, not {sync:g} images/s"
        )
    if not np.isclose(asynchronous, sum(images / each for each in seconds)):
        if np.isclose(asynchronous, count * images / np.mean(seconds)):
            raise Wrong(f"{shown} add the rates of the workers; a mean of times isn't a mean of rates")
        raise Wrong(
            f"{shown} the asynchronous rate is wrong: nobody waits, so each adds images / its seconds"
        )


@tests("05.5", "The time that gradients spend on a network")
def _transfer(answer: Any) -> str:
    function = a_function(answer)
    drawn = draws(55).integers((10**5, 3, 20), (10**7, 50, 900)).tolist()
    for parameters, workers, megabits in (
        (75_290, 2, 100), (25_600_000, 8, 1000), (1_000_000, 64, 10), drawn
    ):  # fmt: skip
        shown = f"{parameters:,} parameters, {workers} workers and {megabits} Mbit/s"
        found = a_number(function(parameters, workers, megabits), f"your result for {shown}")
        bits = 2 * (workers - 1) / workers * parameters * 32
        right = bits / (megabits * 1e6)
        if np.isclose(found, right):
            continue
        for factor, hint in (
            (1 / 8, "bandwidth is in bits per second, weights are counted in bytes: one byte is 8 bits"),
            (1 / 4, "a float32 weight has 4 bytes"),
            (1e6, "a megabit is a million bits"),
            (workers / (2 * (workers - 1)), "each worker sends 2 (W - 1) / W times the gradients, not once"),
            (1e6 / 2**20, "network speeds count in powers of ten: 1 Mbit/s is 1,000,000 bits per second"),
        ):
            if np.isclose(found, right * factor):
                raise Wrong(f"for {shown}, {found:.4g} s: {hint}")
        raise Wrong(
            f"for {shown} expected {right:.4g} s, got {found:.4g}; seconds are bits / (bits per second)"
        )
    return (
        "the time on the wire follows from the bytes; that it adds to each step is what a slow network costs"
    )
