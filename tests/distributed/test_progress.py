"""Tasks that live and make no steps are noticed, and what holds them up is named."""

import socket

import pytest

from labkit.distributed.heartbeat import Heartbeat
from labkit.distributed.progress import BETWEEN_STEPS, PATIENCE, TIMES_AS_LONG, Progress

MINIMUM = 10.0


def task(name: str, begun: int = 7, activity: str = "") -> Heartbeat:
    return Heartbeat(
        name, "", f"{name}-host", 11, "i", 1, "training", begun - 1, {}, "", None, "", begun, activity
    )


@pytest.fixture
def addresses():
    """Of three tasks: two that listen, and one whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        with socket.create_server(("127.0.0.1", 0)) as three:
            ports = [each.getsockname()[1] for each in (one, two, three)]
        yield {f"worker:{index}": f"127.0.0.1:{port}" for index, port in enumerate(ports)}


def stepped(addresses, seconds: float = 0.1) -> Progress:
    progress = Progress("worker:0", addresses, MINIMUM)
    progress.move(seconds)
    progress.judge(1.0, task("worker:0"), {})
    return progress


def test_steps_that_go_on_are_never_too_long(addresses):
    progress = stepped(addresses)
    for _ in range(100):
        progress.move(0.1)
        assert progress.judge(MINIMUM - 1, task("worker:0"), {"worker:1": task("worker:1")}) is None
        assert progress.judge(0.9, task("worker:0"), {"worker:1": task("worker:1")}) is None


def test_a_task_that_has_not_begun_the_step_is_named(addresses):
    progress = stepped(addresses)
    peers = {"worker:1": task("worker:1", begun=6), "worker:2": task("worker:2")}
    said = progress.judge(MINIMUM, task("worker:0"), peers)
    assert said == (
        "no progress for 10 s: step 7 has begun, but not in worker:1 (pid 11 on worker:1-host, "
        "which waits for its input)"
    )


def test_a_task_that_cannot_be_reached_is_named(addresses):
    progress = stepped(addresses)
    peers = {name: task(name) for name in ("worker:1", "worker:2")}
    said = progress.judge(MINIMUM, task("worker:0"), peers)
    assert said.startswith(f"no progress for 10 s: worker:0 can't reach worker:2 ({addresses['worker:2']}): ")
    assert "worker:1" not in said


def test_where_nothing_is_to_be_seen_it_says_so(addresses):
    progress = stepped(addresses)
    said = progress.judge(MINIMUM, task("worker:0"), {"worker:1": task("worker:1")})
    assert said == "no progress for 10 s: all tasks are in step 7 and reach each other's ports"


def test_slow_steps_may_take_a_multiple_of_the_usual_time(addresses):
    progress = stepped(addresses, seconds=5.0)
    peers = {"worker:1": task("worker:1", begun=6)}
    assert progress.judge(TIMES_AS_LONG * 5.0 - 1, task("worker:0"), peers) is None
    assert "no progress for 100 s" in progress.judge(1.0, task("worker:0"), peers)


@pytest.mark.parametrize("steps", [0, 1])
def test_what_has_no_usual_time_may_take_longer(addresses, steps):
    progress = stepped(addresses) if steps else Progress("worker:0", addresses, MINIMUM)
    activity = "saves a checkpoint" if steps else ""
    peers = {"worker:1": task("worker:1", begun=6, activity=activity)}
    assert progress.judge(PATIENCE * MINIMUM - 1, task("worker:0"), peers) is None
    said = progress.judge(1.0, task("worker:0"), peers)
    assert "not in worker:1 (pid 11 on worker:1-host, which " in said
    assert (activity or "waits for its input") in said


def test_each_batch_of_an_evaluation_counts_as_progress(addresses):
    progress = stepped(addresses)
    for _ in range(3):
        progress.move()
        assert progress.judge(PATIENCE * MINIMUM, task("worker:0", activity=BETWEEN_STEPS), {}) is None
