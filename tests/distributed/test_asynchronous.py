"""Handing out steps, with a coordinator whose workers are made of a list."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from labkit.distributed import asynchronous as engine_module
from labkit.distributed.asynchronous import AsynchronousEngine
from labkit.distributed.heartbeat import Attempts
from labkit.distributed.synchronous import Steps
from labkit.training.losses import SOFTMAX


class Result:
    """Stands for a RemoteValue: here after some looks at it, or failed."""

    def __init__(self, figures, failed=None, looks=0):
        self._values = [SimpleNamespace(backing_device="/job:worker/replica:0/task:1/device:CPU:0")]
        self._error = failed
        self.figures, self.looks = figures, looks

    @property
    def _has_fetched_to_local(self):
        self.looks -= 1
        return self.looks < 0

    def fetch(self):
        if self._error:
            raise self._error
        assert self.looks < 0, "copying it may take for ever"
        return np.array([self.figures, 0.5, 1.0]), np.array([0.0, 0.02, 0.07, 0.1, 3.0, 100.0, 200.0])


@pytest.fixture
def make_engine(monkeypatch):
    """Return an engine over batches 0, 1, 2 ..., and the numbers of the batches as they were scheduled."""

    def make(steps, **of_the_second_step):
        scheduled: list[int] = []

        def schedule(function, args):
            scheduled.append(args[0])
            return Result(args[0], **of_the_second_step if len(scheduled) == 2 else {})

        monkeypatch.setattr(
            tf.distribute.coordinator,
            "ClusterCoordinator",
            lambda strategy: SimpleNamespace(schedule=schedule),
        )
        monkeypatch.setattr(engine_module, "hold_attempts", lambda coordinator, attempt: None)
        of_one_worker = Steps(
            strategy=None,
            num_workers=1,
            compiled_at=lambda step_index: None,
            learning_rate_at=lambda step_index: 0.1 * step_index,
            exchanged_bytes_at=lambda step_index: 0.0,
            named=SOFTMAX.named,
            observation=print,
            updates=None,
        )
        engine = AsynchronousEngine(
            of_one_worker, iter((n, n) for n in range(100)), step=0,
            pause_after=lambda step, last: min(last, steps),
            stopping=lambda: False, stuck=list, patience=5, attempts=Attempts(str),
        )  # fmt: skip
        return engine, scheduled

    return make


def test_a_result_that_is_not_here_holds_no_other_one_up(make_engine):
    engine, scheduled = make_engine(6, looks=4)
    results = [engine.next_step() for _ in range(6)]
    assert [result.step for result in results] == [1, 2, 3, 4, 5, 6]
    assert [result.metrics["loss"] for result in results] == [0, 2, 3, 4, 5, 1]
    assert sorted(scheduled) == [0, 1, 2, 3, 4, 5]
    assert all(result.learning_rate == pytest.approx(0.1 * result.metrics["loss"]) for result in results)
    assert {(result.staleness, result.bytes_sent, result.bytes_received) for result in results} == {
        (3, 100.0, 200.0)
    }


def test_a_step_that_failed_by_itself_is_not_made_again(make_engine):
    engine, scheduled = make_engine(4, failed=tf.errors.InvalidArgumentError(None, None, "not finite"))
    engine.next_step()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        engine.next_step()
    assert sorted(scheduled) == [0, 1, 2, 3]


def test_no_step_starts_while_the_loop_pauses(make_engine):
    engine, scheduled = make_engine(100)
    assert engine.is_idle()
    engine.next_step()
    under_way = len(scheduled) - 1
    assert under_way > 0 and not engine.is_idle()
    with pytest.raises(RuntimeError, match="still under way"):
        engine.repeated_updates()
    for _ in range(under_way):
        assert not engine.is_idle()
        engine.next_step(start_more=False)
    assert engine.is_idle() and len(scheduled) == under_way + 1
    engine.next_step()
    assert len(scheduled) > under_way + 1
