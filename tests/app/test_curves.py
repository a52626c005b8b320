"""The columns that the dashboard keeps of a run's metrics."""

import json
import math
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.charts.store import CurveStore
from labkit.run_directory import reader as reader_module
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader
from tests.app.conftest import evaluation_row, train_row

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 90)),
        st.tuples(st.just("validation"), st.just(1)),
        st.tuples(st.just("resume_point"), st.integers(0, 60)),
        st.tuples(st.just("poll"), st.just(0)),
    ),
    max_size=20,
)


@pytest.fixture(params=["at once", "in small blocks"])
def parsed(request, monkeypatch):
    """How the rows are read, which their number decides otherwise."""
    if request.param == "in small blocks":
        monkeypatch.setattr(reader_module, "BLOCK_BYTES", 3000)


@given(events=EVENTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("parsed")
def test_the_columns_equal_the_rows_of_a_reader(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    writer, store, step = MetricsWriter(path), CurveStore(path), 0
    for kind, number in events:
        if kind == "train":
            writer.append([train_row(step + place) for place in range(1, number + 1)])
            step += number
        elif kind == "validation" and step:
            writer.append([evaluation_row(step)])
        elif kind == "resume_point" and number <= step:
            writer.mark_resume_point(number)
            step = number
        elif kind == "poll":
            store.poll()
    writer.close()
    reader = MetricsReader(path)
    reader.poll()
    snapshot = store.poll()
    for split in ("train", "validation", "test"):
        curve = snapshot.curve(split, "loss")
        assert curve.step.tolist() == [row["step"] for row in reader.split(split)]
        assert curve.y.tolist() == [row["loss"] for row in reader.split(split)]
        assert curve.epoch.tolist() == [row["epoch"] for row in reader.split(split)]
    assert list(snapshot.resume_points) == reader.resume_points
    assert store.poll().version == snapshot.version, "nothing was written, nothing is drawn anew"


def test_earlier_snapshots_dont_change(tmp_path):
    writer, store = MetricsWriter(tmp_path / "m"), CurveStore(tmp_path / "m")
    writer.append([train_row(step) for step in range(1, 100)])
    early = store.poll().curve("train", "loss")
    before = early.y.copy()
    writer.append([train_row(step, loss=9.0) for step in range(100, 1000)])
    store.poll()
    writer.mark_resume_point(3)
    writer.append([train_row(step, loss=8.0) for step in range(4, 2000)])
    late = store.poll().curve("train", "loss")
    assert np.array_equal(early.y, before)
    assert late.step.tolist() == list(range(1, 2000))
    assert (late.y[3:] == 8.0).all()


def test_values_that_are_not_finite_are_kept_and_missing_ones_are_left_out(tmp_path):
    writer = MetricsWriter(tmp_path / "m")
    rows = [train_row(1), train_row(2, loss=math.nan), train_row(3, loss=math.inf)]
    writer.append(
        [*rows, {"split": "train", "step": 4, "loss": None}, {"split": "train", "step": 5, "loss": "x"}]
    )
    writer.append(
        [{"split": "train", "step": "6", "loss": 1.0}, {"split": 7, "step": 7}, train_row(8, loss=10**400)]
    )
    snapshot = CurveStore(tmp_path / "m").poll()
    loss = snapshot.curve("train", "loss")
    assert loss.step.tolist() == [1, 2, 3]
    assert loss.y[0] == 2.0
    assert math.isnan(loss.y[1])
    assert loss.y[2] == math.inf
    assert snapshot.curve("train", "accuracy").step.tolist() == [1, 2, 3, 8]
    assert snapshot.damaged_lines == 2, "a step that is a text, a split that is a number"


def test_a_run_that_was_started_over_is_read_again(tmp_path):
    path = tmp_path / "m"
    store = CurveStore(path)
    assert store.poll().tables == {}
    MetricsWriter(path).append([train_row(step) for step in range(1, 50)])
    first = store.poll()
    path.unlink()
    MetricsWriter(path).append([train_row(step, loss=5.0) for step in range(1, 90)])
    second = store.poll()
    assert second.version > first.version
    assert second.curve("train", "loss").y.tolist() == [5.0] * 89
    path.unlink()
    assert store.poll().tables == {}


def test_an_unreadable_file_is_an_error_that_the_page_can_show(tmp_path):
    (tmp_path / "m").mkdir()
    with pytest.raises(IsADirectoryError):
        CurveStore(tmp_path / "m").poll()


def test_sessions_that_poll_at_once_see_complete_columns(tmp_path):
    path, wrong = tmp_path / "m", []
    store, writer = CurveStore(path), MetricsWriter(path)
    done = threading.Event()

    def session() -> None:
        while not done.is_set():
            curve = store.poll().curve("train", "loss")
            if curve.step.tolist() != list(range(1, len(curve) + 1)):
                wrong.append(curve)

    threads = [threading.Thread(target=session) for _ in range(4)]
    for thread in threads:
        thread.start()
    for start in range(0, 2000, 20):
        writer.append([train_row(start + place) for place in range(1, 21)])
        if start % 200 == 100:
            writer.mark_resume_point(start + 20)
    done.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert len(store.poll().curve("train", "loss")) == 2000


def test_a_long_run_is_read_in_small_blocks(tmp_path, monkeypatch):
    path = tmp_path / "m"
    line = json.dumps(train_row(1)) + "\n"
    with open(path, "w") as file:
        file.writelines(line for _ in range(60_000))
    largest = []
    take = MetricsReader._take
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(
        MetricsReader, "_take", lambda self, part: largest.append(len(part)) or take(self, part)
    )
    assert len(CurveStore(path).poll().curve("train", "loss")) == 60_000
    assert max(largest) <= 1 << 20
