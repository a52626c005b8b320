"""Requests and failures of the chief's callbacks, agreed upon by all workers."""

from collections.abc import Callable

from labkit.callbacks.calls import Calls
from labkit.callbacks.training import Requests

__all__ = ["Agreement"]


class Agreement:
    """Collects what callbacks asked for until the train loop can do it.

    Only the chief calls callbacks, but all synchronous workers validate, save and stop together. So they
    exchange one integer after each step, where the chief has callbacks.

    Args:
        calls: the calls of this process's callbacks.
        any_worker: returns the bits that are set in the argument of any worker, and waits for all of them.

    Attributes:
        requests: what is asked for and not done yet.
        failed: whether a callback of the chief has failed.
    """

    def __init__(self, calls: Calls, any_worker: Callable[[int], int]) -> None:
        self._calls = calls
        self.requests, self.failed = Requests(), False
        shares = any_worker(int(calls.can_ask))
        self._any_worker = any_worker if shares else lambda flags: flags

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        return self.failed or self.requests != Requests()

    def update(self) -> None:
        """Take the callbacks' requests and failures; every worker calls this after the same step."""
        asked = self._calls.training.requests
        self._calls.training.requests = Requests()
        mine = (bool(asked.stop), asked.validation, asked.checkpoint, bool(self._calls.failure))
        together = self._any_worker(sum(flag << bit for bit, flag in enumerate(mine)))
        stop, validation, checkpoint, failed = (bool(together >> bit & 1) for bit in range(len(mine)))
        if stop:
            self.requests.stop = self.requests.stop or asked.stop or "a callback of the chief asked for it"
        self.requests.validation |= validation
        self.requests.checkpoint |= checkpoint
        self.failed |= failed

    def taken(self) -> Requests:
        """Return the requests, which count as done from now on."""
        requests, self.requests = self.requests, Requests()
        return requests

    @property
    def failure(self) -> str:
        """What to tell users of a failed callback."""
        return self._calls.failure or "a callback of the chief failed"
