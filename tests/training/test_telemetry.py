"""What a run tells: TensorBoard reads the same figures, a resumed run has one curve."""

import math
import time
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labkit.config import Config
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.reader import read_metrics
from labkit.training import console
from labkit.training.console import format_duration, step_line
from labkit.training.telemetry import Pace, Telemetry


def row(step: int, loss: float) -> dict:
    return {
        "split": "train",
        "step": step,
        "epoch": step / 10,
        "loss": loss,
        "accuracy": 0.5,
        "learning_rate": 0.1,
        "examples_per_second": 100.0,
        "seconds_per_step": 0.32,
        "input_wait_fraction": 0.01,
        "wall_time": time.time(),
    }


def nothing_left(step: int) -> tuple[float, int]:
    return 0.0, 0


def session(run: RunDirectory, steps, first_step: int = 0, resumed: bool = False) -> Telemetry:
    telemetry = Telemetry(run, total_steps=10, first_step=first_step, resumed=resumed)
    for step, loss in steps:
        telemetry.train_row(row(step, loss), Pace(32, nothing_left))
    return telemetry


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.create()
    write_json_atomic(run.config_path, Config().to_json())
    return run


def test_the_status_goes_on_when_the_clock_is_set_back(run, monkeypatch):
    telemetry = session(run, [(1, 2.5)])
    now = time.time() - 3600
    monkeypatch.setattr("labkit.training.telemetry.SECONDS_BETWEEN_STATUSES", 0.0)
    monkeypatch.setattr("labkit.training.telemetry.time.time", lambda: now)
    telemetry.train_row(row(2, 2.4), Pace(32, nothing_left))
    assert (run.read_status().step, run.read_status().heartbeat) == (2, now)
    telemetry.heartbeat("validation")
    assert run.read_status().message == "validation"
    telemetry.close()


def scalars(run: RunDirectory, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run.events_path), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_sees_what_the_metrics_say(run):
    session(run, [(1, 2.5), (2, math.inf), (3, 1.5)]).close()
    reader = read_metrics(run)
    assert [(r["step"], r["loss"]) for r in reader.split("train")] == scalars(run, "train/loss")
    assert scalars(run, "train/learning_rate")[0] == (1, pytest.approx(0.1))


def test_a_resumed_run_is_one_curve_in_both(run):
    session(run, [(1, 2.5), (2, 2.4), (3, 2.3)]).close()
    time.sleep(1)  # the files' names have the second, then a number of this process that isn't padded
    session(run, [(2, 2.2), (3, 2.1)], first_step=1, resumed=True).close()
    reader = read_metrics(run)
    assert [(r["step"], r["loss"]) for r in reader.split("train")] == [(1, 2.5), (2, 2.2), (3, 2.1)]
    assert [resume_point.step for resume_point in reader.resume_points] == [1]
    assert [step for step, _ in scalars(run, "train/loss")] == [1, 2, 3]
    assert scalars(run, "train/loss")[1] == (2, pytest.approx(2.2))


def test_status_follows_the_run(run):
    telemetry = session(run, [])
    assert run.read_status().liveness() == "starting"
    telemetry.train_row(row(1, 2.0), Pace(32, nothing_left))
    telemetry.state("running")
    assert (run.read_status().state, run.read_status().step) == ("running", 1)
    telemetry.state("failed", "loss is nan at step 1")
    telemetry.close()
    assert (run.read_status().liveness(), run.read_status().message) == ("failed", "loss is nan at step 1")
    line = step_line(row(5, 1.25), 10, 90.0, 75.0)
    for part in ("5/10", "1.2500", "0.500", "0.1", "100", "average 90", "0.320", "1.0%", "1:15"):
        assert part in line
    assert [format_duration(seconds) for seconds in (None, 0.4, 61, 3600)] == ["-", "0:00", "1:01", "1:00:00"]


def test_pace_leaves_the_compiling_step_out_and_averages_by_time():
    pace = Pace(100, nothing_left)
    assert pace.lap() is None
    pace.add(1, 30.0, 1.0)
    assert pace.average_examples_per_second() is None
    pace.add(2, 1.0, 0.5)
    pace.add(3, 3.0, 0.5)
    assert pace.average_examples_per_second() == pytest.approx(50.0)
    assert pace.lap() == {
        "examples_per_second": pytest.approx(50.0),
        "seconds_per_step": pytest.approx(2.0),
        "input_wait_fraction": pytest.approx(0.25),
    }
    assert pace.lap() is None
    pace.add(4, 1.0, 0.0)
    assert pace.lap()["examples_per_second"] == pytest.approx(100.0)
    assert pace.average_examples_per_second() == pytest.approx(60.0)


def test_an_evaluation_is_recorded_once_a_step(run):
    telemetry = session(run, [(1, 2.5)])
    test = {"split": "test", "step": 1, "accuracy": 0.5, "wall_time": time.time()}
    telemetry.evaluation_row(test)
    telemetry.close()
    again = session(run, [], first_step=1, resumed=True)
    again.evaluation_row(test)
    again.evaluation_row(test | {"split": "validation"})
    again.close()
    reader = read_metrics(run)
    assert len(reader.split("test")) == len(reader.split("validation")) == 1


def test_the_time_left_counts_evaluations(monkeypatch):
    pace = Pace(100, lambda step: (12 - step, 300))
    assert pace.seconds_left(1) is None
    pace.add(1, 30.0, 0.0)
    pace.add(2, 3.0, 0.0)
    assert pace.seconds_left(2) == pytest.approx(10 * 3.0 + 3.0)  # an example costs a third of a step's
    pace.add_evaluation(50.0, 100)
    assert pace.seconds_left(2) == pytest.approx(10 * 3.0 + 150.0)


@pytest.mark.parametrize(("every_seconds", "lines"), [(10.0, [1, 2, 3]), (25.0, [3]), (None, [])])
def test_lines_come_by_time_where_steps_are_slow(monkeypatch, every_seconds, lines):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    said: list[str] = []
    shown = SimpleNamespace(line=said.append, start_progress=lambda *_: None, progress=lambda *_: None)
    pace = Pace(32, lambda step: (100 - step, 0))
    progress = console.Progress(shown, pace, every_steps=50, every_seconds=every_seconds)
    training = SimpleNamespace(step=0, total_steps=100)
    progress.on_start(training)
    for step in (1, 2, 3):
        now[0] += 11.0
        pace.add(step, 11.0, 0.0)
        progress.after_step(training, row(step, 2.0))
    assert [line.split("/")[0] for line in said if line.startswith("step")] == [f"step {n}" for n in lines]
    assert sum(line.startswith("expected time left") for line in said) == 1
