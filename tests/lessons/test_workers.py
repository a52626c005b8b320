"""Worker processes of lessons 10 to 14: what is sent arrives, and every failure is one sentence in time."""

import importlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.lessons.workers import Gone, Worker, Workers, WorkersFailed, workers_of
from labkit.cluster.hosts import why_no_hosts

pytestmark = pytest.mark.timeout(120)


def test_a_worker_starts_without_tensorflow_whose_import_takes_seconds() -> None:
    assert workers_of(2).run(lambda worker: "tensorflow" in sys.modules).results == [False, False]


@pytest.mark.parametrize("module", ["collectives.measure", "failure.training", "link_times", "data_parallel"])
def test_what_workers_run_is_imported_without_tensorflow(module: str) -> None:
    def imported(worker: Worker, name: str) -> bool:
        importlib.import_module(name)
        return "tensorflow" in sys.modules

    assert not workers_of(1).run(imported, f"course.lessons.{module}").results[0]


def test_arrays_of_any_type_arrive_in_order_and_are_counted() -> None:
    def around(worker: Worker) -> list[Any]:
        sent = [np.arange(5), np.array(2.5, np.float32), np.zeros((0, 3)), np.full((700, 700), worker.rank)]
        for array in sent:
            worker.send((worker.rank + 1) % worker.size, array)
            array += 1  # what was sent is a copy
        return [worker.receive((worker.rank - 1) % worker.size) for _ in sent]

    done = workers_of(3).run(around)
    for rank, received in enumerate(done.results):
        expected = [
            np.arange(5),
            np.array(2.5, np.float32),
            np.zeros((0, 3)),
            np.full((700, 700), (rank - 1) % 3),
        ]
        for found, one in zip(received, expected, strict=True):
            np.testing.assert_array_equal(found, one)
            assert found.dtype == one.dtype
    assert done.messages_sent == [4, 4, 4]
    assert done.bytes_sent == [40 + 4 + 0 + 700 * 700 * 8] * 3


def test_a_message_that_nobody_received_does_not_reach_the_next_function() -> None:
    def send_one_receive_none(worker: Worker) -> None:
        worker.send(1 - worker.rank, np.zeros(3))

    def swap(worker: Worker) -> Any:
        worker.send(1 - worker.rank, np.array(worker.rank))
        return worker.receive(1 - worker.rank).tolist()

    workers_of(2).run(send_one_receive_none)
    assert workers_of(2).run(swap).results == [1, 0]


def test_times_and_spans_are_counted_from_a_common_moment() -> None:
    def first_waits(worker: Worker) -> None:
        with worker.span("sleep"):
            time.sleep(0.2 if worker.rank == 0 else 0)
        worker.barrier()

    done = workers_of(2).run(first_waits)
    assert min(done.seconds) >= 0.19
    assert [span.name for span in done.spans] == ["sleep", "sleep"]
    assert 0 <= done.spans[0].begin < done.spans[0].end <= done.seconds[0]


def test_spans_of_all_workers_are_of_one_clock() -> None:
    def handed_over(worker: Worker) -> None:
        if worker.rank == 0:
            with worker.span("before"):
                worker.send(1, np.zeros(1))
        else:
            worker.receive(0)
            with worker.span("behind"):
                pass

    for _ in range(20):
        before, behind = workers_of(2).run(handed_over).spans
        assert before.begin < behind.begin


@pytest.mark.long
def test_a_wait_that_never_ends_names_who_waits_for_whom_and_the_next_run_works() -> None:
    def waits(worker: Worker) -> None:
        if worker.rank == 1:
            worker.receive(0)

    workers = workers_of(2)
    with pytest.raises(WorkersFailed, match=r"after 1 s, worker 1 still waits for a message from worker 0$"):
        workers.run(waits, seconds=1)
    assert workers.run(lambda worker, x: worker.rank * x, 10).results == [0, 10]


def test_a_run_waits_for_a_start_in_another_thread() -> None:
    with Workers(2) as workers:
        starting = threading.Thread(target=workers.start)
        starting.start()
        assert workers.run(lambda worker: worker.rank).results == [0, 1]
        starting.join()


def test_what_a_worker_raises_is_one_sentence_with_its_line() -> None:
    def fails(worker: Worker) -> None:
        if worker.rank == 1:
            raise KeyError("a")
        worker.receive(1)

    with pytest.raises(WorkersFailed, match=r"^worker 1 raised KeyError in line \d+ of fails: 'a'$"):
        workers_of(2).run(fails)
    with pytest.raises(WorkersFailed, match=r"line \d+ of <lambda>: worker 1 has no peer 5; its"):
        workers_of(2).run(lambda worker: worker.rank and worker.send(5, np.zeros(1)))


@pytest.mark.long
def test_a_killed_worker_is_named_or_where_that_is_allowed_the_others_are_told() -> None:
    def waits(worker: Worker) -> str:
        if worker.rank == 1:
            time.sleep(60)
        try:
            worker.receive(1)
        except Gone as gone:
            return str(gone)
        return "received"

    with Workers(2) as workers:
        workers.start()
        threading.Timer(0.5, workers.kill, [1]).start()
        assert workers.run(waits, may_lose=True).results == ["worker 1 has ended", None]
        workers.start()
        threading.Timer(0.5, workers.kill, [1]).start()
        with pytest.raises(WorkersFailed, match="worker 1 ended: killed by SIGKILL"):
            workers.run(waits)
        with pytest.raises(WorkersFailed, match="worker 0 ended: exit code 3"):
            workers.run(lambda worker: os._exit(3))


def test_no_other_user_can_read_the_key_of_the_workers() -> None:
    def command_line(worker: Worker) -> bytes:
        return Path("/proc/self/cmdline").read_bytes()

    with Workers(2) as workers:
        shown = {re.sub(rb"\d+", b"", line) for line in workers.run(command_line).results}
    assert len(shown) == 1  # but for numbers of descriptor and rank, the same for all, and in each start
    assert not re.search(rb"[0-9a-f]{16}", shown.pop())


@pytest.mark.long
@pytest.mark.skipif(why_no_hosts() is not None, reason="no network namespaces")
def test_a_link_of_a_chosen_rate_takes_the_time_of_its_bytes() -> None:
    def one_way(worker: Worker, size: int) -> None:
        if worker.rank == 0:
            worker.send(1, np.zeros(size, np.uint8))
        else:
            worker.receive(0)

    with Workers(2, link="20mbit") as workers:
        seconds = workers.run(one_way, 1_000_000).seconds[1]
    assert seconds > 0.3  # 0.4 s, less what the link lets through at once
