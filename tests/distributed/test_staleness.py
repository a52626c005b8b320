"""How old a gradient may be, and a worker made slow on purpose, which waits and computes the same."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import DistributionConfig
from labkit.distributed import asynchronous as engine
from labkit.distributed import asynchronous_step, synchronous
from labkit.distributed.asynchronous import StalenessLimit
from labkit.distributed.synchronous import SlowWorker
from labkit.errors import InputError

WORKERS, STEPS = 5, 40


class Server:
    """Counts updates, as the step's variable on a parameter server does."""

    def __init__(self) -> None:
        self.updates = 0
        self._lock = threading.Lock()

    def count_update(self) -> int:
        with self._lock:
            self.updates += 1
            return self.updates - 1


def staleness_of_all(limit: StalenessLimit) -> list[int]:
    """Let five workers, the last a slow one, make steps that last as long as chance has it."""
    server, found = Server(), []

    def work(number: int) -> None:
        random, slowness = np.random.default_rng(number), 8 if number == WORKERS - 1 else 1
        for _ in range(STEPS // slowness):
            with limit.attempt():
                when_read = server.updates
                time.sleep(slowness * random.uniform(0.0005, 0.002))
                found.append(server.count_update() - when_read)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "steps wait for each other"
    assert len(found) == (WORKERS - 1) * STEPS + STEPS // 8
    return found


@pytest.mark.parametrize("most", [0, 1, 3, 8])
def test_no_update_is_staler_than_allowed(most):
    assert max(staleness_of_all(StalenessLimit(most))) <= most


def test_without_a_tight_limit_updates_of_the_slow_worker_are_stale():
    assert max(staleness_of_all(StalenessLimit(1000))) > 8


def test_a_step_starts_only_when_no_running_one_would_become_too_stale():
    limit = StalenessLimit(2)
    started = [threading.Event() for _ in range(4)]
    ends = [threading.Event() for _ in range(4)]

    def step(number: int) -> None:
        with limit.attempt():
            started[number].set()
            assert ends[number].wait(30)

    threads = [threading.Thread(target=step, args=(number,)) for number in range(4)]
    for number, thread in enumerate(threads[:3]):
        thread.start()
        assert started[number].wait(30)
    ends[2].set()
    threads[2].join(30)
    threads[3].start()  # with it, the first one would have seen three: 1, 2 and 3
    assert not started[3].wait(0.1)
    ends[0].set()
    assert not started[3].wait(0.1), "the second one runs since before 2 started"
    ends[1].set()
    assert started[3].wait(30)
    ends[3].set()
    threads[3].join(30)


def test_a_lost_worker_may_still_update_for_a_moment(monkeypatch):
    monkeypatch.setattr(engine, "SECONDS_TO_SETTLE", 0.3)
    limit = StalenessLimit(0)
    failed_at = time.monotonic()
    with pytest.raises(tf.errors.UnavailableError), limit.attempt():
        raise tf.errors.UnavailableError(None, None, "Connection reset by peer")
    with limit.attempt():
        assert time.monotonic() - failed_at >= 0.3


# ---- a worker made slow on purpose ---------------------------------------------------------------------


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(synchronous.time, "sleep", found.append)
    return found


def test_a_synchronous_worker_waits_after_each_step_but_the_one_that_compiles(slept):
    worker, first, second = SlowWorker(3.0), object(), object()
    for train_step, seconds in ((first, 9.0), (first, 0.2), (second, 8.0), (second, 0.1)):
        worker.wait(train_step, seconds)
    assert slept == pytest.approx([0.4, 0.2])
    slept.clear()
    config = DistributionConfig(slow_worker="12:1.5")
    assert (config.slow, config.slowness_of("worker:12")) == ((12, 1.5), 1.5)
    worker = SlowWorker(config.slowness_of("worker:0"))
    worker.wait(first, 9.0)
    worker.wait(first, 0.2)
    assert sum(slept) == 0, "other workers do not wait"


def test_the_wait_within_a_graph_takes_its_time_and_no_core():
    wait = tf.function(asynchronous_step._sleep)
    wait(tf.constant(0.0, tf.float64))
    cores, seconds = [], []
    for _ in range(4):  # the machine, and other threads of this process, may be busy with something else
        started, cpu = time.perf_counter(), time.process_time()
        wait(tf.constant(0.2, tf.float64))
        seconds.append(time.perf_counter() - started)
        cores.append(time.process_time() - cpu)
    assert 0.2 <= min(seconds) < 0.38
    assert min(cores) < 0.1  # a wait that occupies a core takes 0.2 s of it each time


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":3", "1:0.5", "1:nan", "1:inf", "-1:3", "1:3,2:3", "a:3", "1:101"]
)
def test_other_forms_are_refused(text):
    with pytest.raises(InputError, match="^--slow-worker is '.*'; allowed: the index of a worker, a colon"):
        DistributionConfig(slow_worker=text)
