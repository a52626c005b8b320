"""What lesson 14 computes: formulas against published numbers and a simulation, logs, servers, made rows."""

import json
import os
import signal

import numpy as np
import pytest

from course.lessons.exercises.failure import make_log
from course.lessons.failure import training
from course.lessons.failure.processes import Event
from course.lessons.failure.referee import forge, made_twice
from course.lessons.failure.servers import arrivals, gather, serve_at_once, train_with
from course.lessons.workers import Worker, Workers
from labkit.run_directory import RunDirectory


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_best_interval_is_the_published_one(hours, minutes):
    # Daly (2006), figures 3 to 5: a checkpoint takes 5 minutes.
    assert training.best_work(5 * 60, hours * 3600) / 60 == pytest.approx(minutes, abs=0.5)


def test_expected_goodput_is_that_of_a_simulation():
    random, work, checkpoint, restart, mtbf = np.random.default_rng(0), 0.4, 0.1, 0.2, 1.0
    seconds, intervals = 0.0, 20_000
    for _ in range(intervals):
        needed = work + checkpoint
        while (life := random.exponential(mtbf)) < needed:
            seconds, needed = seconds + life, restart + work + checkpoint
        seconds += needed
    found = intervals * work / seconds
    assert training.expected_goodput(work, checkpoint, restart, mtbf) == pytest.approx(found, rel=0.02)


def test_a_step_counts_unless_a_kill_takes_it_back():
    what = ["start", "step", "step", "saved", "step", "lost", "lost", "start", "step", "saved", "step"]
    log = [Event(float(at), each) for at, each in enumerate(what)]
    kinds = [kind for kind, _, _ in training.periods(log)]
    count, lost, checkpoint, restart = training.COUNT, training.LOST, training.CHECKPOINT, training.RESTART
    assert kinds == [count, count, checkpoint, lost, lost, restart, restart, count, checkpoint, count]
    assert training.goodput([log]) == 0.4


@pytest.mark.parametrize(("story", "count"), [("..s.xr.s", 3), ("..s.xr..", 4), ("..s..x", 2)])
def test_goodput_of_a_log_is_that_of_the_steps_that_are_left(story, count):
    log, counted = make_log(story, 2.0)
    assert counted == count
    assert training.goodput([log]) == pytest.approx(2 * count / (log[-1].seconds - log[0].seconds))


def test_the_gradient_is_that_of_the_loss():
    random = np.random.default_rng(1)
    model = training.Softmax(random.normal(size=(30, 4)), random.integers(0, 3, 30))
    weights, rows = random.normal(size=(4, 3)), np.array([1, 5, 5, 9])
    gradient, _ = model.gradient(weights, rows)
    for at in np.ndindex(4, 3):
        shift = np.zeros((4, 3))
        shift[at] = 1e-5
        losses = [model.gradient(weights + sign * shift, rows)[1] for sign in (1, -1)]
        assert gradient[at] == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-6)


def test_a_lost_worker_ends_its_messages_and_stops_no_asynchronous_server():
    random = np.random.default_rng(2)
    model = training.Softmax(random.normal(size=(40, 4)), random.integers(0, 3, 40))
    batches = [random.integers(0, 40, 4) for _ in range(20)]
    with Workers(3) as workers:
        made, _ = train_with(workers, model, serve_at_once, batches, 0.1, dies={2: 8})
        assert len(made) == 20
        tasks = [(rank, place - staleness) for place, (rank, staleness) in enumerate(made)]
        assert all(number < 8 for rank, number in tasks if rank == 2), "killed at a task from 8 on"

        def lost(worker: Worker) -> object:
            if worker.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if worker.rank == 1:
                return worker.send(0, (7, "gradient", 1.0))
            members = [1, 2]
            inbox = arrivals(worker, [2])
            return gather(inbox, members, 7, 2), members

        assert workers.run(lost, may_lose=True).results[0] == (None, [1])


def test_rows_that_were_made_twice_and_a_forged_one(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"split": "train", "step": step, "loss": 1.0} for step in (1, 2, 3, 2, 3, 4)]
    rows.insert(3, {"split": "validation", "step": 3, "loss": 5.0})
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(made_twice(RunDirectory(run))) == [2, 3]
    forged = forge(RunDirectory(run), tmp_path / "forged", 4)
    written = [json.loads(line) for line in (forged / "metrics.jsonl").read_text().splitlines()]
    changed = [(old, new) for old, new in zip(rows, written, strict=True) if old != new]
    assert changed == [(rows[-1], {**rows[-1], "loss": 0.9})]
