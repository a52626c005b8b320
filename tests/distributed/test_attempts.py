"""Which asynchronous workers count as hanging."""

from contextlib import ExitStack

import pytest

from labkit.distributed import progress as module
from labkit.distributed.progress import Attempts

MINIMUM = 10.0


class Watch:
    """Attempts of workers whose clock is turned by hand, and somebody who watches them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.attempts = Attempts(lambda worker: f"process of {worker}")

    def make_step(self, worker: str, seconds: float) -> None:
        with self.attempts.attempt(worker):
            self.now += seconds

    def overdue(self, elapsed: float) -> list[str]:
        self.now += elapsed
        return [attempt.worker for attempt in self.attempts.overdue(elapsed, MINIMUM)]


@pytest.fixture
def watch(monkeypatch):
    made = Watch()
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


def test_a_step_that_does_not_end_while_others_do_is_found(watch):
    watch.make_step("worker:1", 0.1)
    with watch.attempts.attempt("worker:1"):
        for _ in range(10):
            watch.make_step("worker:0", 0.1)
            assert not watch.overdue(1.0)
        assert watch.overdue(1.0) == ["worker:1"]
        [attempt] = watch.attempts.overdue(0.0, MINIMUM)
        assert (attempt.incarnation, attempt.watched) == ("process of worker:1", pytest.approx(11.0))
    assert not watch.overdue(99.0)


def test_it_is_found_when_the_others_have_nothing_to_do_any_more(watch):
    watch.make_step("worker:1", 0.1)
    with watch.attempts.attempt("worker:1"):
        watch.make_step("worker:0", 0.1)
        assert watch.overdue(11.0) == ["worker:1"]


def test_nobody_is_to_blame_where_no_other_worker_shows_that_the_servers_answer(watch):
    watch.make_step("worker:0", 0.1)
    with watch.attempts.attempt("worker:0"):
        assert not watch.overdue(11.0)


def test_nobody_is_to_blame_where_all_wait(watch):
    with ExitStack() as running:
        for worker in ("worker:1", "worker:0"):
            watch.make_step(worker, 0.1)
            running.enter_context(watch.attempts.attempt(worker))
            watch.make_step("worker:2", 0.1)
            assert not watch.overdue(4.0)
        assert not watch.overdue(6.1)  # 10.1 and 6.1 seconds


def test_a_time_in_which_nobody_watched_does_not_count(watch):
    watch.make_step("worker:1", 0.1)
    with watch.attempts.attempt("worker:1"):
        watch.now += 1000  # everything was suspended
        watch.make_step("worker:0", 0.1)
        assert not watch.overdue(2.0)


def test_slow_steps_may_take_longer(watch):
    watch.make_step("worker:1", 2.0)
    with watch.attempts.attempt("worker:1"):
        watch.make_step("worker:0", 2.0)
        assert not watch.overdue(39.0)
        assert watch.overdue(2.0) == ["worker:1"]


def test_a_first_step_may_take_ten_times_as_long_and_so_may_the_first_after_a_failure(watch):
    for _ in range(2):
        with pytest.raises(OSError), watch.attempts.attempt("worker:1"):
            watch.make_step("worker:0", 0.1)
            assert not watch.overdue(99.0)
            assert watch.overdue(2.0) == ["worker:1"]
            raise OSError
        with watch.attempts.attempt("worker:1"):
            watch.make_step("worker:0", 0.1)
            assert not watch.overdue(99.0)
        with pytest.raises(OSError), watch.attempts.attempt("worker:1"):
            watch.make_step("worker:0", 0.1)
            raise OSError
