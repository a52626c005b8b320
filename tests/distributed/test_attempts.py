"""Which asynchronous workers count as hanging."""

from contextlib import ExitStack

import pytest

from labkit.distributed.asynchronous import attempts as module
from labkit.distributed.asynchronous.attempts import Attempts

MINIMUM = 10.0


@pytest.fixture
def clock(monkeypatch):
    """A list of one number: the time in seconds."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def make_step(attempts: Attempts, clock: list[float], worker: str, seconds: float) -> None:
    with attempts.attempt(worker):
        clock[0] += seconds


def test_a_step_that_does_not_end_while_others_do_is_reported_once(clock):
    attempts = Attempts()
    make_step(attempts, clock, "worker:1", 0.1)
    with attempts.attempt("worker:1"):
        for _ in range(99):
            make_step(attempts, clock, "worker:0", 0.1)
            assert attempts.overdue(MINIMUM) == {}
        make_step(attempts, clock, "worker:0", 0.3)
        assert attempts.overdue(MINIMUM) == {"worker:1": pytest.approx(10.2)}
        assert attempts.overdue(MINIMUM) == {}


def test_it_is_reported_when_the_others_have_nothing_to_do(clock):
    attempts = Attempts()
    make_step(attempts, clock, "worker:1", 0.1)
    with attempts.attempt("worker:1"):
        clock[0] += 11
        assert list(attempts.overdue(MINIMUM)) == ["worker:1"]


def test_nobody_is_to_blame_where_all_wait(clock):
    attempts = Attempts()
    with ExitStack() as running:
        for worker in ("worker:0", "worker:1"):
            make_step(attempts, clock, worker, 0.1)
            running.enter_context(attempts.attempt(worker))
            clock[0] += 4
        clock[0] += 6.1  # 14.2 and 10.1 seconds
        assert attempts.overdue(MINIMUM) == {}


def test_slow_steps_may_take_longer(clock):
    attempts = Attempts()
    make_step(attempts, clock, "worker:0", 2.0)
    with attempts.attempt("worker:0"):
        clock[0] += 39
        assert attempts.overdue(MINIMUM) == {}
        clock[0] += 2
        assert list(attempts.overdue(MINIMUM)) == ["worker:0"]


def test_a_first_step_may_take_longer_and_so_may_the_first_after_a_failure(clock):
    attempts = Attempts()
    for _ in range(2):
        with attempts.attempt("worker:0"):
            clock[0] += 99
            assert attempts.overdue(MINIMUM) == {}
        with pytest.raises(OSError), attempts.attempt("worker:0"):
            raise OSError
