"""A watch on progress: tasks that live and send heartbeats, but make no steps.

Heartbeats go through files. So they go on when the network between the tasks fails, when a connection hangs
without an error, and when a thread of a task waits for ever. Then no task finishes its step, and each notices
it by itself. Standard library only.
"""

import socket
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from labkit.distributed.heartbeat import Heartbeat
from labkit.distributed.task import split_address

__all__ = ["BETWEEN_STEPS", "Progress", "unreachable"]

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
        errors = dict(zip(addresses, pool.map(_connection_error, addresses.values()), strict=True))
    return "; ".join(f"{name} ({addresses[name]}): {error}" for name, error in errors.items() if error)


def _connection_error(address: str) -> str:
    """Return why no connection to ``address`` can be made, or ""."""
    try:
        socket.create_connection(split_address(address), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return str(error)
    return ""
