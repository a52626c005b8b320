"""What a table of runs says of whole, resumed, damaged, growing and large runs; and how it is chosen from."""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit.config import Config
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, Status, list_runs
from labkit.run_directory.find import chosen_runs
from labkit.run_directory.metrics import MetricsSummary
from labkit.run_directory.notes import change_notes
from labkit.run_directory.reader import MetricsReader, read_metrics
from labkit.run_directory.reader import summary_of as summary_of_rows
from labkit.run_directory.summary import Summaries
from tests.commands.made_runs import evaluation, make_run


def row(step, loss=None, wall_time=None, **values):
    """A row of a training step as labkit writes it."""
    loss = 2.0 / step if loss is None else loss
    wall_time = 1000.0 + step if wall_time is None else wall_time
    start = {"split": "train", "step": step, "epoch": step / 50, "loss": loss, "accuracy": 0.5}
    return {**start, "seconds_per_step": 1.0, "wall_time": wall_time, **values}


def summary_of(run):
    return Summaries(describe).of([run])[0]


def told_of(path):
    reader = MetricsReader(path)
    reader.poll()
    found = summary_of_rows(reader)
    again = MetricsSummary.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert repr(again) == repr(found), "status.json keeps it"
    return found


def write(path, rows, end=""):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def test_a_finished_run(tmp_path):
    rows = [*map(row, range(1, 21)), evaluation("validation", 10, 0.9), evaluation("validation", 20, 0.7)]
    run = make_run(tmp_path, "a", rows=[*rows, evaluation("test", 20, 0.8)], learning_rate=0.5)
    found = summary_of(run)
    assert (found.name, found.state, found.step, found.total_steps) == ("a", "finished", 20, 20)
    assert (found.best_validation_accuracy, found.test_accuracy, found.progress) == (0.9, 0.8, 1)
    assert (found.accuracy, found.accuracy_split, found.training_loss) == (0.8, "test", 0.1)
    assert found.spark == tuple(2.0 / step for step in range(1, 21))
    assert found.duration == 20.0, "from the beginning of the first step to the last row"
    assert (found.dataset, found.model) == ("shapes", "resnet8")
    assert found.settings == {"dataset": "shapes", "num_layers": 8, "learning_rate": 0.5, "train_steps": 20}
    bad = summary_of(make_run(tmp_path, "b", state="failed", rows=[row(1), row(2, math.nan)]))
    assert math.isnan(bad.training_loss) and bad.spark == (2.0,)
    assert bad.to_json()["training_loss"] is None


def test_what_is_not_known_is_none(tmp_path):
    run = RunDirectory(tmp_path / "bare")
    run.create()
    run.config_path.write_text("{}")
    found = summary_of(run)
    assert found.state == "unknown"
    assert "parts" in found.message
    unknown = ("step", "progress", "accuracy", "best_validation_accuracy", "test_accuracy", "training_loss",
               "examples_per_second", "duration", "dataset", "model", "settings")  # fmt: skip
    assert {getattr(found, name) for name in unknown} == {None}
    assert found.spark == ()
    json.dumps(found.to_json(), allow_nan=False)


def test_rows_before_a_resumption_from_an_earlier_step_do_not_show(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = [row(step, 1.0) for step in range(1, 6)] + [row(step, 9.0) for step in range(6, 11)]
    rows = [*first, evaluation("validation", 10, 0.99), {"resumed_at_step": 5, "wall_time": 5000.0}]
    write(path, rows)
    assert told_of(path).training_loss == 1.0
    write(path, [*rows, *(row(step, 1.0, 5000.0 + step - 5) for step in range(6, 9))])
    found = told_of(path)
    assert set(found.spark) == {1.0}
    assert (found.validation, found.tests) == (None, ())
    assert found.last_step == 8
    assert found.duration == 10 + 3, "two sessions, without the pause between them"


@pytest.mark.parametrize("count", [1, 2, 600])
@pytest.mark.parametrize("jump", [-44.0, -86_400.0, 86_400.0])
def test_a_clock_that_is_set_does_not_change_the_duration(tmp_path, count, jump):
    def session(start: int, began: float) -> list[dict]:
        jumps = [jump if number > count // 2 else 0 for number in range(1, count + 1)]
        return [row(start + n, 1.0, began + n + by) for n, by in enumerate(jumps, 1)]

    path, pause = tmp_path / "metrics.jsonl", {"resumed_at_step": count, "wall_time": 2e9}
    write(path, [*session(0, 1e9), pause])
    assert told_of(path).duration == pytest.approx(count, rel=0.01)
    write(path, [*session(0, 1e9), pause, *session(count, 2e9)])
    assert told_of(path).duration == pytest.approx(2 * count, rel=0.01), "the pause doesn't count"
    validation = evaluation("validation", 2, 0.5) | {"seconds": 30.0, "wall_time": 62.0}
    write(path, [row(1, 1.0, 101.0), row(2, 1.0, 102.0), validation, row(3, 1.0, 63.0)])
    assert told_of(path).duration == 2 + 30 + 1, "set back over a validation"


ROWS = st.one_of(
    st.builds(row, st.integers(1, 30), st.floats(allow_nan=True), st.floats(0, 1e9)),
    st.builds(evaluation, st.sampled_from(["validation", "test"]), st.integers(1, 30), st.floats(0, 1)),
    st.builds(lambda step: {"resumed_at_step": step, "wall_time": 5.0}, st.integers(0, 30)),
)


@given(rows=st.lists(ROWS, max_size=12), beside=st.lists(ROWS, max_size=3))
@settings(max_examples=40, deadline=None)
def test_the_summary_in_the_status_says_what_the_rows_say(tmp_path_factory, rows, beside):
    run = make_run(tmp_path_factory.mktemp("runs"), "a", rows=rows)
    write(run.path / "evaluations.jsonl", beside)
    by_rows = summary_of(run)
    reader = read_metrics(run)
    run.write_status(replace(run.read_status(), metrics=summary_of_rows(reader).to_json()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsReader, "poll", lambda *given: pytest.fail("the rows are read"))
        by_status = summary_of(run)
    assert repr(replace(by_status, last_active=0)) == repr(replace(by_rows, last_active=0))


def test_rows_that_the_status_does_not_tell_of_are_read(tmp_path):
    run = make_run(tmp_path, "a", rows=[row(1)])
    reader = read_metrics(run)
    run.write_status(replace(run.read_status(), metrics=summary_of_rows(reader).to_json()))
    assert summary_of(run).training_loss == 2.0
    write(run.metrics_path, [row(1), row(2)])  # by a writer that was killed before its next status
    assert summary_of(run).training_loss == 1.0
    for wrong in ({"file_bytes": 1}, {"file_bytes": "x"}, {"tests": 3}, {"validation": {"split": 1}}):
        damaged = run.read_status().metrics | wrong
        run.write_status(replace(run.read_status(), metrics=damaged))
        assert summary_of(run).training_loss == 1.0


def test_the_rows_count_once_the_process_is_gone(tmp_path):
    run = make_run(tmp_path, "a", state="running", pid=os.getpid(), heartbeat=time.time(), rows=[row(1)])
    reader = read_metrics(run)
    run.write_status(replace(run.read_status(), metrics=summary_of_rows(reader).to_json()))
    write(run.metrics_path, [row(1), row(2), evaluation("test", 2, 0.7)])
    summaries = Summaries(describe)
    [before] = summaries.of([run])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Status, "liveness", lambda *given: "interrupted")  # killed; no file has changed
        [after] = summaries.of([run])
    assert (before.test_accuracy, after.test_accuracy) == (None, 0.7)


@pytest.mark.parametrize(
    "bad",
    [
        {"resumed_at_step": -9},
        {"resumed_at_step": 10**400},
        {"split": "train", "step": 10**400, "loss": 1.0},
        {"split": "train", "step": 2**60, "loss": 1.0},
        {"split": "train", "step": -5, "loss": 1.0},
        {"split": "test", "step": 2, "loss": "NaN", "accuracy": "x"},
        {"split": "validation", "step": 2, "accuracy": None},
        {"a": [None], "not_finite": {f"a[{'9' * 5000}]": "NaN", "a" + "[0]" * 5000: "NaN"}},
    ],
    ids=lambda bad: json.dumps(bad)[:50],
)
def test_a_damaged_row_hides_no_result(bad, tmp_path):
    rows = [row(1), row(2), evaluation("validation", 2, 0.6), evaluation("test", 2, 0.7)]
    run = make_run(tmp_path, "a", rows=[*rows, bad])
    write(run.path / "evaluations.jsonl", [bad, {"split": "test"}])
    found = summary_of(run)
    assert (found.step, found.test_accuracy, found.best_validation_accuracy) == (20, 0.7, 0.6)
    assert found.training_loss == 1.0
    assert labkit.load_run(run.path).evaluations("test")["step"].tolist() == [2]
    assert any("evaluations.jsonl: " in one for one in found.damage)
    assert labkit.load_run(run.path).metrics("train")["step"].tolist() == [1, 2]


def test_without_time_the_metrics_stay_unknown_until_later(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.run_directory.summary.BLOCK_BYTES", 4096)
    run = make_run(tmp_path, "a", rows=[*map(row, range(1, 200)), evaluation("validation", 20, 0.5)])
    table = Summaries(describe)
    [found] = table.of([run], 0.0)
    assert (found.complete, found.best_validation_accuracy, found.spark) == (False, None, ())
    assert found.state == "finished"
    for _ in range(100):
        [found] = table.of([run], 0.001)
    assert (found.complete, found.best_validation_accuracy) == (True, 0.5)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ({"state": "running", "pid": "ended"}, "lost", "no longer exists"),
        ({"state": "running", "heartbeat": 5.0, "pid": os.getpid()}, "stalled", "no heartbeat since 1970"),
        ({"state": "running", "heartbeat": 2e10, "pid": os.getpid()}, "running", "in the future"),
        ({"state": "failed"}, "failed", ""),
    ],
)
def test_a_state_has_its_reason(tmp_path, status, state, reason):
    if status.get("pid") == "ended":
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait(30)
        status = {**status, "pid": ended.pid}
    run = make_run(tmp_path, "a", rows=[row(1)], **status)
    found = summary_of(run)
    assert found.state == state and reason in found.message
    for wrong in ({"step": 1e308}, {"state": "<b>"}, {"state": ["running"]}):
        run.status_path.write_text(json.dumps(json.loads(run.status_path.read_text()) | wrong))
        assert summary_of(run).step == 1, "what labkit would not write is not shown"
    run.metrics_path.rename(tmp_path / "elsewhere")
    run.metrics_path.symlink_to(tmp_path / "elsewhere")
    assert any("metrics.jsonl can't be read: it is a link" in one for one in summary_of(run).damage)


def test_a_second_look_reads_nothing_and_a_change_is_seen(tmp_path, monkeypatch):
    runs = [make_run(tmp_path, f"run-{number}", rows=[row(1)]) for number in range(5)]
    table = Summaries(describe)
    before = table.of(runs)
    opened = []
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda *given, **more: opened.append(given[0]) or real(*given, **more)
    )
    assert table.of(runs) == before
    assert opened == []
    change_notes(runs[2], add=["x"])
    after = table.of(runs)
    assert [one.notes.tags for one in after] == [(), (), ("x",), (), ()]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, True, True]


def test_what_a_configuration_says_agrees_with_the_whole_check(tmp_path):
    config = Config.from_flat(
        {"model": "vgg", "num_layers": 11, "seed": 7, "job_dir": "/x", "data_dir": "/y"}
    )
    found = describe(json.loads(json.dumps(config.to_json())))
    assert found.model == "vgg11"
    assert found.settings == {"model": "vgg", "num_layers": 11, "seed": 7}, "no paths"
    assert found.values == config.flat()
    for wrong in ({"learning_rate": "fast"}, {"nosuch": 1}):
        broken = json.loads(json.dumps(config.to_json()))
        broken["optimizer"].update(wrong)
        with pytest.raises(InputError):
            describe(broken)


CHOICES = {
    "good": ("accuracy>0.75", "accuracy>=80%", "accuracy=80%", "tag=Paper", "paper"),
    "poor": ("accuracy<0.75", "learning_rate>0.2", "learning_rate=0.5"),
    "none": ("state!=finished",),
    "sizes": ("mean_absolute_error<100", "mean_absolute_error=4.5"),
    "none sizes": ("accuracy=none",),
    "good poor sizes": ("resnet step=20",),
    "good none poor sizes": ("age<1h", "mean_absolute_error!=4"),
}


def test_runs_are_chosen_by_words_and_conditions(tmp_path):
    good = make_run(tmp_path, "good", rows=[evaluation("test", 20, 0.8)])
    make_run(tmp_path, "poor", rows=[evaluation("test", 20, 0.7)], learning_rate=0.5)
    make_run(tmp_path, "none", state="failed", step=1)
    make_run(tmp_path, "sizes", rows=[{"split": "test", "step": 20, "loss": 0.5, "mean_absolute_error": 4.5}])
    change_notes(good, add=["paper"])
    table = Summaries(describe).of(list_runs(tmp_path))
    for names, texts in CHOICES.items():
        for text in texts:
            found = sorted(one.name for one in chosen_runs(table, text.split()))
            assert found == names.split(), text
    for text, words in (("sate=x", "did you mean 'state'"), ("step>many", "compares with 'many'")):
        with pytest.raises(InputError, match=words):
            chosen_runs([], [text])


def test_a_table_of_runs_opens_each_file_once_and_none_that_has_not_changed(tmp_path):
    rows = [*map(row, range(1, 61)), evaluation("test", 60, 0.5)]
    runs = [make_run(tmp_path, f"run-{number}", rows=rows, seed=number) for number in range(5)]
    opened, table, looks = Counter[str](), Summaries(describe), [False]

    def note(event: str, values: tuple) -> None:
        if looks[0] and event == "open" and str(values[0]).startswith(str(tmp_path)):
            opened[str(values[0])] += 1

    sys.addaudithook(note)  # which can't be taken back
    looks[0] = True
    table.of(runs)
    assert len(opened) == 6 * len(runs) and set(opened.values()) <= {1, 2}  # by os.open, then as a file
    opened.clear()
    table.of(runs)
    looks[0] = False
    assert not opened
