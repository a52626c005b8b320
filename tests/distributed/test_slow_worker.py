"""A worker made slow on purpose waits as long as a slow machine would take, and computes the same."""

import time

import pytest
import tensorflow as tf

from labkit.config import Config, DistributionConfig
from labkit.distributed import asynchronous_step, synchronous
from labkit.distributed.synchronous import SlowWorker
from labkit.errors import InputError


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


def test_other_workers_do_not_wait(slept):
    factor = Config.from_flat({"slow_worker": "1:3"}).distribution.slowness_of("worker:0")
    worker, step = SlowWorker(factor), object()
    worker.wait(step, 9.0)
    worker.wait(step, 0.2)
    assert sum(slept) == 0


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


def test_index_and_factor_are_read():
    assert DistributionConfig(slow_worker="12:1.5").slow == (12, 1.5)
    assert DistributionConfig(slow_worker="12:1.5").slowness_of("worker:12") == 1.5
    assert DistributionConfig().slowness_of("worker:0") == 1
