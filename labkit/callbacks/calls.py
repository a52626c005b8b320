"""``Calls``: calls the callbacks, checks what they return, and shares what they ask for with all workers."""

import json
import math
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.callbacks.callback import METHODS, Callback, Requests, TrainingFailed, TrainingView

SECONDS_UNTIL_REPORTED = 5.0  # a call that takes longer appears in the run's status and on the console
# What readers of the metrics take for something else.
RESERVED = ("resumed_at_step", "split", "step", "epoch", "wall_time", "f1_micro")
_NAME = re.compile(r"[A-Za-z][\w./-]*", re.ASCII)


class Calls:
    """Calls each callback's method at its point of the training.

    After an exception, ``failure`` holds the line for users, and no callback is called any more but for
    ``on_end``.

    Only the chief calls callbacks, but all synchronous workers validate, save and stop together. So they
    exchange one integer after each step, where the chief has callbacks (``agree``).

    Args:
        callbacks: in the order in which they are called.
        training: the view that they get.
        heartbeat: takes a line for the run's status, from another thread, while a call takes long.
        say: takes a line for the console.

    Attributes:
        failure: of this process's callbacks, a line; empty without one.
        requested: what all workers are to do, and haven't done yet.
        any_failed: whether a callback of the chief has failed.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        training: TrainingView,
        *,
        heartbeat: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self.training, self.failure = training, ""
        self.requested, self.any_failed = Requests(), False
        self._any_worker: Callable[[int], int] = lambda flags: flags
        self._callbacks, self._heartbeat, self._say = tuple(callbacks), heartbeat, say
        self._overriding = {
            name: [one for one in callbacks if getattr(type(one), name) is not getattr(Callback, name)]
            for name in METHODS
        }
        self._not_finite: set[str] = set()
        self._running: tuple[str, float] | None = None
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="labkit-callbacks", daemon=True)
        # Whether callbacks may ask for something or fail; the first one, labkit's progress, does neither.
        self._can_ask = len(callbacks) > 1
        if self._can_ask:
            self._watcher.start()

    def states(self) -> dict[str, Any]:
        """Return the state of each callback that has one, by its class and number, for a checkpoint."""
        found: dict[str, Any] = {}
        for name, callback in self._named():
            state = self._call(callback, "state", "when its state was asked for")
            if state is None:
                continue
            try:
                found[name] = json.loads(json.dumps(state, allow_nan=False))
                is_same = bool(found[name] == state)
            except (TypeError, ValueError, RecursionError):
                is_same = False
            if not is_same:
                self._fail(
                    f"callback {name}: its state is {_shown(state)}; allowed: finite numbers, texts, lists, "
                    "and dicts with texts as keys"
                )
        return found

    def _named(self) -> Iterator[tuple[str, Callback]]:
        """Yield the callbacks by class, and by number from the second one of a class on."""
        counts: Counter[str] = Counter()
        for callback in self._callbacks:
            name = type(callback).__name__
            counts[name] += 1
            yield name if counts[name] == 1 else f"{name} {counts[name]}", callback

    def on_start(self, states: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Give each callback the state that the checkpoint has of it (``states``), and call ``on_start``."""
        for name, callback in self._named():
            if name in states and not self.failure:
                self._call(callback, "restore", "when its state was restored", states[name])
        self._call_each("on_start", "before the first step")
        self.states()  # what can't be saved fails now, not after hours

    def before_step(self, step: int) -> None:
        if self._overriding["before_step"]:
            self._call_each("before_step", f"before step {step}", step)

    def after_step(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that callbacks add to the row."""
        self.training.advance(row)
        return self._metrics("after_step", row)

    def after_validation(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that callbacks add to the row of the validation."""
        return self._metrics("after_validation", row)

    def after_checkpoint(self, step: int, path: Path) -> None:
        self._call_each("after_checkpoint", f"after the checkpoint of step {step}", step, path)

    def on_end(self, state: str) -> None:
        """Call every callback, whatever happened before, and stop watching them."""
        if self._closed.is_set():
            return
        for callback in self._overriding["on_end"]:
            self._call(callback, "on_end", "at the end", state)
        self._closed.set()
        self.training.close()
        if self._watcher.is_alive():  # it must not write a status after the last one
            self._watcher.join()

    # ---- what all workers agree upon ---------------------------------------------------------------

    def share(self, any_worker: Callable[[int], int]) -> None:
        """Exchange requests and failures with all workers from now on, where the chief has callbacks.

        ``any_worker`` returns the bits that are set in its argument in any worker, and waits for all of them.
        """
        if any_worker(int(self._can_ask)):
            self._any_worker = any_worker

    def agree(self) -> None:
        """Take the callbacks' requests and failures; every worker calls this after the same step."""
        asked, self.training.requests = self.training.requests, Requests()
        mine = (bool(asked.stop), asked.validation, asked.checkpoint, bool(self.failure))
        together = self._any_worker(sum(flag << bit for bit, flag in enumerate(mine)))
        stop, validation, checkpoint, failed = (bool(together >> bit & 1) for bit in range(len(mine)))
        if stop and not self.requested.stop:
            self.requested.stop = asked.stop or "a callback of the chief asked for it"
        self.requested.validation |= validation
        self.requested.checkpoint |= checkpoint
        self.any_failed |= failed

    @property
    def pending(self) -> bool:
        """Whether there is something to do."""
        return self.any_failed or self.requested != Requests()

    def take_requests(self) -> Requests:
        """Return the requests, which count as done from now on."""
        requested, self.requested = self.requested, Requests()
        return requested

    # ---- one call ------------------------------------------------------------------------------------

    def _call_each(self, method: str, when: str, *arguments: Any) -> None:
        for callback in self._overriding[method]:
            if not self.failure:
                self._call(callback, method, when, *arguments)

    def _metrics(self, method: str, row: Mapping[str, Any]) -> dict[str, float]:
        added: dict[str, float] = {}
        if not self._overriding[method]:
            return added
        shown = MappingProxyType(dict(row))
        when = f"after step {row['step']}" if method == "after_step" else f"after validation at {row['step']}"
        for callback in self._overriding[method]:
            if self.failure:
                break
            returned = self._call(callback, method, when, shown)
            if returned is not None:
                self._add(added, returned, callback, row)
        return added

    def _call(self, callback: Callback, method: str, when: str, *arguments: Any) -> Any:
        started = time.monotonic()
        name = type(callback).__name__
        self._running = (f"callback {name} {when}", started)
        try:
            given = () if method in ("state", "restore") else (self.training,)
            return getattr(callback, method)(*given, *arguments)
        except TrainingFailed as error:
            self._fail(str(error))
        except (Exception, SystemExit) as error:
            for line in traceback.format_exc().splitlines():  # where in the user's code
                self._say(line)
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            self._fail(f"callback {name} failed {when}: {message}")
        finally:
            self._running = None
            seconds = time.monotonic() - started
            if seconds >= SECONDS_UNTIL_REPORTED:
                self._say(f"note: callback {name} took {seconds:.0f} s {when}; training waited for it")

    def _fail(self, message: str) -> None:
        self.failure = self.failure or message

    def _add(
        self, added: dict[str, float], returned: Any, callback: Callback, row: Mapping[str, Any]
    ) -> None:
        name = f"callback {type(callback).__name__}, step {row['step']}:"
        if not isinstance(returned, Mapping):
            return self._fail(
                f"{name} it returned {_shown(returned)}; allowed: None, or a dict of numbers by name"
            )
        for key, value in returned.items():
            if not (isinstance(key, str) and _NAME.fullmatch(key)):
                allowed = "letters, digits, _ . - and /, with a letter first"
                return self._fail(f"{name} it named a metric {key!r}; allowed: {allowed}")
            if key in row or key in added or key in RESERVED:
                has = "which labkit uses itself" if key in RESERVED else "which the metrics row already has"
                return self._fail(f"{name} it named a metric {key!r}, {has}; choose another name")
            number = _number(value)
            if number is None:
                return self._fail(f"{name} its metric {key!r} is {_shown(value)}; allowed: one number")
            if not math.isfinite(number) and key not in self._not_finite:
                self._not_finite.add(key)
                self._say(f"note: {name} its metric {key!r} is {number}")
            added[key] = number
        return None

    def _watch(self) -> None:
        """Report a call that takes long, so that the run doesn't look stalled."""
        while not self._closed.wait(SECONDS_UNTIL_REPORTED):
            running = self._running
            if running and time.monotonic() - running[1] >= SECONDS_UNTIL_REPORTED:
                self._heartbeat(f"{running[0]} has been running for {time.monotonic() - running[1]:.0f} s")


def _number(value: Any) -> float | None:
    """Return a number, also one in an array or tensor without dimensions; None for anything else."""
    if isinstance(value, bool | str | bytes) or getattr(value, "shape", ()) != ():
        return None
    try:
        return float(value)
    except Exception:  # of whatever object a callback returned
        return None


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape):
        return f"an array of shape {tuple(shape)}"
    return repr(value)[:80]
