"""A watch on progress: tasks that live and send heartbeats, but make no steps, and steps that don't end.

Heartbeats go through files. So they go on when the network between the tasks fails, when a connection hangs
without an error, and when a thread of a task waits for ever. Then no task finishes its step, and each notices
it by itself. Standard library only.
"""

import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.distributed.heartbeat import Heartbeat
from labkit.distributed.task import split_address

USUAL_STEPS = 20  # whose median is the usual time of a step
TIMES_AS_LONG = 20  # as the usual step
PATIENCE = 10  # times as long for what has no usual time: compiling, a batch of an evaluation, a checkpoint
SECONDS_TO_CONNECT = 2.0
SECONDS_FOR_OTHERS = 10.0  # to find a cause, where this task finds none
BETWEEN_STEPS = "is between two steps"


class Progress:
    """Judges whether a cluster still makes progress.

    Args:
        name: of this task.
        addresses: of all tasks, by name.
        minimum: seconds without progress that are never too long.
    """

    def __init__(self, name: str, addresses: Mapping[str, str], minimum: float) -> None:
        self._name, self._addresses, self._minimum = name, dict(addresses), minimum
        self._seconds: deque[float] = deque(maxlen=USUAL_STEPS)
        self._moves = self._seen = 0
        self._still = 0.0  # seconds of watching without a move

    def move(self, step_seconds: float | None = None) -> None:
        """Note progress. ``step_seconds``: of a step that has ended; None: something else has."""
        if step_seconds is not None:
            self._seconds.append(step_seconds)
        self._moves += 1

    def judge(
        self, elapsed: float, own: Heartbeat, peers: Mapping[str, Heartbeat], needed: Iterable[str]
    ) -> str | None:
        """Return what hinders the steps if they have ended for too long, else None.

        Args:
            elapsed: seconds that the caller has watched since the last call.
            own: the heartbeat of this task.
            peers: those of the other tasks that make the same steps.
            needed: the tasks that this one must reach.
        """
        self._still = 0.0 if self._moves != self._seen else self._still + elapsed
        self._seen = self._moves
        tasks = {own.name: own, **peers}
        busy = {name: task for name, task in tasks.items() if task.activity}
        limit = max(self._minimum, TIMES_AS_LONG * statistics.median(self._seconds or [0.0]))
        if busy or not self._seconds:
            limit *= PATIENCE
        if self._still < limit:
            return None
        reason = self._reason(tasks, needed)
        if not reason and self._still < limit + SECONDS_FOR_OTHERS:
            return None
        return f"no progress for {self._still:.0f} s: {reason or 'all tasks reach each other'}"

    def _reason(self, tasks: Mapping[str, Heartbeat], needed: Iterable[str]) -> str:
        """Return what can be seen of the cause, or ""."""
        newest = max(task.begun for task in tasks.values())
        behind = {name: task for name, task in tasks.items() if task.begun < newest}
        if behind:
            words = [self._described(name, task) for name, task in behind.items()]
            return f"step {newest} has begun, but not in {'; '.join(words)}"
        cut = unreachable({name: self._addresses[name] for name in needed})
        return f"{self._name} can't reach {cut}" if cut else ""

    def _described(self, name: str, task: Heartbeat) -> str:
        doing = f", which {task.activity}" if task.activity else ", which waits for its input"
        return f"{name} (pid {task.pid} on {task.host}{doing})"


def unreachable(addresses: Mapping[str, str]) -> str:
    """Return the tasks among ``addresses`` (by name) that no connection can be made to, and why, or ""."""
    with ThreadPoolExecutor(32) as pool:
        errors = dict(zip(addresses, pool.map(connection_error, addresses.values()), strict=True))
    return "; ".join(f"{name} ({addresses[name]}): {error}" for name, error in errors.items() if error)


def connection_error(address: str, seconds: float = SECONDS_TO_CONNECT) -> OSError | None:
    """Return why no connection to ``address`` can be made within ``seconds``, or None."""
    try:
        socket.create_connection(split_address(address), seconds).close()
    except OSError as error:
        return error
    return None


# ---- the steps of asynchronous workers


@dataclass(eq=False)
class Attempt:
    """A step that a worker makes now.

    ``incarnation``: of the worker's process. ``first``: whether it compiles the step. ``watched``: seconds
    for which ``overdue`` has seen it. ``others_ended``: whether another worker has ended a step since it
    began. ``dismissed``, ``reported``: for the caller of ``overdue``: whether it has told the worker to end,
    or has said why it can't.
    """

    worker: str
    incarnation: str
    first: bool
    watched: float = 0.0
    others_ended: bool = False
    dismissed: bool = False
    reported: bool = False


class Attempts:
    """Finds workers whose step does not end, although other workers' steps do.

    Used by the threads of the coordinator that serve the workers (``attempt``), and by the one that watches.

    Args:
        incarnation_of: returns the incarnation of a worker's process, as its heartbeat names it.
    """

    def __init__(self, incarnation_of: Callable[[str], str]) -> None:
        self._incarnation_of = incarnation_of
        self._running: dict[str, Attempt] = {}
        self._seconds: dict[str, deque[float]] = {}  # of the last steps of each worker
        self._changed = threading.Lock()

    @contextmanager
    def attempt(self, worker: str) -> Iterator[None]:
        """Note that ``worker``, such as ``worker:1``, makes a step within this context."""
        began, incarnation = time.monotonic(), self._incarnation_of(worker)
        with self._changed:
            self._running[worker] = Attempt(worker, incarnation, first=worker not in self._seconds)
        try:
            yield
        except BaseException:
            with self._changed:
                del self._running[worker]
                self._seconds.pop(worker, None)  # another process may make the next step, and compile it
            raise
        with self._changed:
            del self._running[worker]
            last = self._seconds.setdefault(worker, deque(maxlen=USUAL_STEPS))
            last.append(time.monotonic() - began)
            for other in self._running.values():
                other.others_ended = True

    def overdue(self, elapsed: float, minimum: float) -> list[Attempt]:
        """Return the steps that take too long, of workers that are to blame for it.

        A worker is to blame if another worker has ended a step meanwhile, and no other worker's step takes
        long, too: else they may all be waiting for a parameter server.

        Args:
            elapsed: seconds that the caller has watched since the last call. The clock goes on while this
                process is suspended, and the workers with it.
            minimum: seconds that are never too long. A step may also take ``TIMES_AS_LONG`` times as long as
                the worker's usual one, and a worker's first step ``PATIENCE`` times longer than all others.
        """
        with self._changed:
            running = list(self._running.values())
            for attempt in running:
                attempt.watched += elapsed
            return [each for each in running if self._is_overdue(each, running, minimum)]

    def _is_overdue(self, attempt: Attempt, running: list[Attempt], minimum: float) -> bool:
        usual = statistics.median(self._seconds.get(attempt.worker) or [0.0])
        limit = max(minimum, TIMES_AS_LONG * usual) * (PATIENCE if attempt.first else 1)
        others_are_quick = all(other is attempt or other.watched < limit / 2 for other in running)
        return attempt.watched > limit and attempt.others_ended and others_are_quick
