"""Tasks that live and make no steps are noticed, and what holds them up is named."""

import socket

import pytest

from labkit.distributed.heartbeat import Heartbeat
from labkit.distributed.progress import (
    BETWEEN_STEPS,
    PATIENCE,
    SECONDS_FOR_OTHERS,
    TIMES_AS_LONG,
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
