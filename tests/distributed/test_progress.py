"""Tasks that live and make no steps are noticed, and what holds them up is named."""

import socket
from contextlib import ExitStack

import pytest

from labkit.distributed import heartbeat as progress_module
from labkit.distributed.heartbeat import (
    BETWEEN_STEPS,
    PATIENCE,
    SECONDS_FOR_OTHERS,
    TIMES_AS_LONG,
    Attempts,
    Heartbeat,
    Progress,
)

MINIMUM = 10.0


def task(name: str, begun: int = 7, activity: str = "") -> Heartbeat:
    values = (name, "", f"{name}-host", 11, "i", 1, "training", begun - 1, {}, "", None)
    return Heartbeat(*values, begun=begun, activity=activity)


def judged(progress: Progress, seconds: float, *peers: Heartbeat, activity: str = "") -> str | None:
    """Return the judgement of worker:0 after it has watched for ``seconds``."""
    others = {peer.name: peer for peer in peers}
    return progress.judge(seconds, task("worker:0", activity=activity), others, others)


@pytest.fixture
def addresses():
    """Of three tasks: two that listen, and one whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        with socket.create_server(("127.0.0.1", 0)) as three:
            ports = [each.getsockname()[1] for each in (one, two, three)]
        yield {f"worker:{index}": f"127.0.0.1:{port}" for index, port in enumerate(ports)}


def stepped(addresses, seconds: float = 0.1) -> Progress:
    """Return the watch of a task that has made a step of so many seconds."""
    progress = Progress("worker:0", addresses, MINIMUM)
    progress.move(seconds)
    judged(progress, 1.0)
    return progress


def test_steps_that_go_on_are_never_too_long(addresses):
    progress = stepped(addresses)
    for _ in range(100):
        progress.move(0.1)
        assert judged(progress, MINIMUM - 1, task("worker:1", begun=6)) is None
        assert judged(progress, MINIMUM - 1, task("worker:1", begun=6)) is None


def test_a_task_that_has_not_begun_the_step_is_named(addresses):
    said = judged(stepped(addresses), MINIMUM, task("worker:1", begun=6), task("worker:2"))
    assert said == (
        "no progress for 10 s: step 7 has begun, but not in worker:1 (pid 11 on worker:1-host, "
        "which waits for its input)"
    )


def test_a_task_that_cannot_be_reached_is_named(addresses):
    said = judged(stepped(addresses), MINIMUM, task("worker:1"), task("worker:2"))
    assert said is not None
    assert said.startswith(f"no progress for 10 s: worker:0 can't reach worker:2 ({addresses['worker:2']}): ")
    assert "worker:1" not in said


def test_a_task_that_sees_no_cause_leaves_the_others_time_to_name_one(addresses):
    progress = stepped(addresses)
    assert judged(progress, MINIMUM + SECONDS_FOR_OTHERS - 1, task("worker:1")) is None
    assert judged(progress, 1.0, task("worker:1")) == "no progress for 20 s: all tasks reach each other"


def test_slow_steps_may_take_a_multiple_of_the_usual_time(addresses):
    progress = stepped(addresses, seconds=5.0)
    assert judged(progress, TIMES_AS_LONG * 5.0 - 1, task("worker:1", begun=6)) is None
    assert "no progress for 100 s" in str(judged(progress, 1.0, task("worker:1", begun=6)))


@pytest.mark.parametrize("activity", ["", "saves a checkpoint"])
def test_what_has_no_usual_time_may_take_longer(addresses, activity):
    progress = stepped(addresses) if activity else Progress("worker:0", addresses, MINIMUM)
    behind = task("worker:1", begun=6, activity=activity)
    assert judged(progress, PATIENCE * MINIMUM - 1, behind) is None
    words = activity or "waits for its input"
    assert f"not in worker:1 (pid 11 on worker:1-host, which {words})" in str(judged(progress, 1.0, behind))


def test_each_batch_of_an_evaluation_counts_as_progress(addresses):
    progress = stepped(addresses)
    for _ in range(3):
        progress.move()
        assert judged(progress, PATIENCE * MINIMUM, activity=BETWEEN_STEPS) is None


# ---- asynchronous workers ------------------------------------------------------------------------------


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
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: made.now)
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
