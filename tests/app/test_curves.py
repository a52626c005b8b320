"""The columns that the dashboard keeps of a run's metrics, its time axis, and what is drawn of each line."""

import hashlib
import itertools
import math
import re
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.charts.board import PALETTE, Chart, Line, downsample, encode
from app.charts.component import ASSETS
from app.charts.store import CurveStore, Timeline, timeline_of
from labkit.run_directory import reader as reader_module
from labkit.run_directory.metrics import MetricsWriter
from labkit.run_directory.reader import MetricsReader
from tests.app.boards import Board, Drawn, decoded
from tests.app.rows import append, evaluation_row, train_row

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 90)),
        st.tuples(st.just("added"), st.integers(1, 9)),
        st.tuples(st.just("validation"), st.just(1)),
        st.tuples(st.just("resume_point"), st.integers(0, 60)),
        st.tuples(st.just("poll"), st.just(0)),
        st.tuples(st.just("start over"), st.just(0)),
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
def test_the_columns_equal_the_rows_of_a_reader_and_earlier_ones_never_change(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    writer, store, step, earlier = MetricsWriter(path), CurveStore(path), 0, []
    for kind, number in events:
        if kind in ("train", "added"):
            more = {"a/b-c.d_1": 7.0} if kind == "added" else {}
            writer.append([train_row(step + place, **more) for place in range(1, number + 1)])
            step += number
        elif kind == "validation" and step:
            writer.append([evaluation_row(step)])
        elif kind == "resume_point" and number <= step:
            writer.mark_resume_point(number)
            step = number
        elif kind == "start over" and step:
            writer.close()
            path.unlink()
            store.poll()  # as it does every second
            writer, step = MetricsWriter(path), 0
        elif kind == "poll":
            curve = store.poll().curve("train", "loss")
            earlier.append((curve, curve.y.copy()))
    writer.close()
    reader = MetricsReader(path)
    reader.poll()
    snapshot = store.poll()
    for split in ("train", "validation", "test"):
        for name in ("loss", "a/b-c.d_1"):
            curve = snapshot.curve(split, name)
            rows = [row for row in reader.split(split) if name in row]
            assert curve.step.tolist() == [row["step"] for row in rows]
            assert curve.y.tolist() == [row[name] for row in rows]
            assert curve.epoch.tolist() == [row["epoch"] for row in rows]
    assert ("a/b-c.d_1" in snapshot.metrics()) == any("a/b-c.d_1" in row for row in reader.split("train"))
    assert list(snapshot.resume_points) == reader.resume_points
    assert store.poll().version == snapshot.version, "nothing was written, nothing is drawn anew"
    assert all(np.array_equal(curve.y, before) for curve, before in earlier)


def test_only_numbers_become_curves_and_those_that_are_not_finite_are_kept(tmp_path):
    odd = {"text": "1.5", "flag": True, "none": None, "list": [1], "huge": 10**400, "split2": {}}
    rows = [train_row(1, noise=1.0), train_row(2, noise=math.nan, **odd), train_row(3, noise=math.inf, **odd)]
    bad = [{"split": "train", "step": "6", "loss": 1.0}, {"split": 7, "step": 7}]
    append(tmp_path / "m", *rows, *bad, train_row(4, noise="x"), train_row(8, noise=10**400, loss=None))
    snapshot = CurveStore(tmp_path / "m").poll()
    assert not set(odd) & set(snapshot.metrics())
    noise = snapshot.curve("train", "noise")
    assert noise.step.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(noise.y, [1, math.nan, math.inf])
    assert snapshot.curve("train", "loss").step.tolist() == [1, 2, 3, 4]
    assert snapshot.curve("train", "accuracy").step.tolist() == [1, 2, 3, 4, 8]
    assert snapshot.damaged_lines == 2, "a step that is a text, a split that is a number"


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


# ---- time ----------------------------------------------------------------------------------------------


def timeline_after(path, *parts) -> Timeline:
    """Return the timeline of rows and resume points: ``(step, wall_time)`` and ``step``."""
    rows = [
        {"resumed_at_step": part, "wall_time": 1e6}
        if isinstance(part, int)
        else train_row(part[0], wall_time=part[1])
        for part in parts
    ]
    append(path, *rows)
    return timeline_of(CurveStore(path).poll())


def test_time_spent_training_leaves_out_pauses(tmp_path):
    hour = 3600.0
    rows = ((1, 10.0), (2, 12.0), (3, 14.0), 2, (3, hour), (4, hour + 2), (5, hour + 4))
    timeline = timeline_after(tmp_path / "m", *rows)
    assert timeline.step.tolist() == [1, 2, 3, 4, 5]
    assert timeline.seconds.tolist() == [0, 2, 4, 6, 8], (
        "the first step after a pause took as long as the next"
    )
    assert timeline.clock.tolist() == [10, 12, hour, hour + 2, hour + 4]


def test_where_no_time_is_known_no_step_has_a_time_of_training(tmp_path):
    timeline = timeline_after(tmp_path / "m", *((step, None) for step in (1, 2, 3)))
    assert np.isnan(timeline.seconds).all() and np.isnan(timeline.clock).all()


@pytest.mark.parametrize("times", [[10, 12, 5, 7, 9], [10, 12, float("nan"), 16, 18], [10, 10, 10, 10, 10]])
def test_a_clock_that_is_set_back_breaks_nothing(tmp_path, times):
    timeline = timeline_after(tmp_path / "m", *enumerate(times, 1))
    for axis in ("seconds", "clock"):
        values = getattr(timeline, axis)
        assert np.isfinite(values).all()
        assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("jump", [-44.0, -86_400.0, 86_400.0])
def test_a_clock_that_is_set_leaves_the_training_time_alone(tmp_path, jump):
    times = [100.0 + step + (jump if step > 30 else 0) for step in range(1, 61)]
    timeline = timeline_after(tmp_path / "m", *enumerate(times, 1))
    took = np.diff(timeline.seconds)
    assert took[29] == pytest.approx(0.3), "as long as the row itself says"
    assert np.delete(took, 29) == pytest.approx(1.0)
    assert timeline.clock[-1] == times[-1]
    assert (np.diff(timeline.clock) > 0).all(), "no two steps stand at one place"


def test_an_evaluation_stands_where_its_step_ended_also_after_the_clock_was_set_back(tmp_path):
    times = [1000.0, 1002.0, 904.0, 906.0]
    append(tmp_path / "m", *(train_row(step, wall_time=when) for step, when in enumerate(times, 1)))
    append(tmp_path / "m", evaluation_row(2, wall_time=1002.5), evaluation_row(4, wall_time=1e9))
    metrics = CurveStore(tmp_path / "m").poll()
    timeline, curve = timeline_of(metrics), metrics.curve("validation", "loss")
    assert timeline.clock.tolist() == pytest.approx([901.7, 903.7, 904, 906])
    assert timeline.x(curve, "clock").tolist() == timeline.clock[[1, 3]].tolist()
    assert timeline.x(curve, "training").tolist() == timeline.seconds[[1, 3]].tolist()


# ---- drawing ------------------------------------------------------------------------------------------

STEPS = np.arange(1.0, 1_000_001.0)
NOISE = np.random.default_rng(0).normal(size=len(STEPS))


def board_of_line(y, *, window=None, logarithmic: bool = False) -> Board:
    """Return the board of one line over the steps from 1."""
    y = np.asarray(y, np.float64)
    chart = Chart("loss", "Loss", [Line("train", STEPS[: len(y)], y, PALETTE[0])], logarithmic=logarithmic)
    return decoded(encode([chart], axis="step", x_title="Step", window=window))


def drawn_line(y, **options) -> Drawn:
    return board_of_line(y, **options).charts[0].lines["train"]


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=300),
    points=st.integers(4, 60),
)
@settings(max_examples=150, deadline=None)
def test_downsampling_keeps_extremes_and_both_ends(values, points):
    y = np.array(values, np.float64)
    kept = downsample(y, points)
    finite = np.flatnonzero(np.isfinite(y))
    assert (np.diff(kept) > 0).all()
    assert np.isin(kept, finite).all()
    assert len(kept) <= max(points + 2, 0)
    if len(finite):
        assert y[kept].min() == y[finite].min()
        assert y[kept].max() == y[finite].max()
        assert (kept[0], kept[-1]) == (finite[0], finite[-1])


@given(index=st.integers(0, 999_999), height=st.sampled_from([-50.0, 50.0]), data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_spike_of_one_step_among_a_million_is_in_every_zoom_that_contains_it(index, height, data):
    y = NOISE.copy()
    y[index] = height
    drawn = data.draw(st.integers(0, index)), data.draw(st.integers(index, len(y) - 1))
    for window in (None, drawn):
        line = drawn_line(y, window=window and (STEPS[window[0]], STEPS[window[1]]))
        assert height in line.y
        assert len(line.x) <= 1602 + 2
        assert line.of == (window[1] - window[0] + 1 if window else len(y))


def test_what_has_no_place_is_marked_and_breaks_the_line():
    line = drawn_line([1.0, 2.0, math.nan, 3.0, math.inf, -math.inf, 4.0])
    assert line.marks == {"NaN": (1, [3.0]), "+Infinity": (1, [5.0]), "−Infinity": (1, [6.0])}
    np.testing.assert_array_equal(line.y, [1.0, 2.0, math.nan, 3.0, math.nan, 4.0])
    line = drawn_line([1.0, 0.0, 2.0, -1.0, 3.0], logarithmic=True)
    assert line.marks == {"≤ 0": (2, [2.0, 4.0])}
    np.testing.assert_array_equal(line.y, [1.0, math.nan, 2.0, math.nan, 3.0])
    count, places = drawn_line([math.nan] * 5000).marks["NaN"]
    assert count == 5000 and 2 <= len(places) <= 400
    assert (places[0], places[-1]) == (1.0, 5000.0)


def test_a_zoom_sends_the_points_in_it_and_one_on_either_side():
    line = drawn_line(np.arange(1000.0), window=(100.5, 110.5))
    assert line.x.tolist() == list(range(100, 112))
    assert line.of == 10
    beyond = drawn_line(np.arange(1000.0), window=(5000.0, 6000.0))
    assert (beyond.of, beyond.x.tolist()) == (0, [1000])


@given(
    values=st.lists(
        st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=200
    ),
    window=st.tuples(st.floats(-10, 220), st.floats(-10, 220)).map(sorted) | st.none(),
    logarithmic=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_board_can_be_read_and_draws_only_recorded_values(values, window, logarithmic):
    y = np.array(values, np.float64)
    board = board_of_line(y, window=window, logarithmic=logarithmic)
    assert (board.extent is None) == (not values)
    for chart in board.charts:
        for line in chart.lines.values():
            assert (np.diff(line.x) >= 0).all()
            there = np.isfinite(line.y)
            np.testing.assert_array_equal(line.y[there], y[line.x[there].astype(int) - 1])
            assert not (logarithmic and (line.y[there] <= 0).any())


@pytest.mark.parametrize(
    ("x", "x_drawn", "y_drawn", "style"),
    [
        ([1, 2, 3], [1, 2, 3], [10, 20, 30], "line"),
        ([3, 2, 1], [1, 2, 3], [30, 20, 10], "line"),
        ([1, 3, 2], [1, 2, 3], [10, 30, 20], "dots"),
        ([2, 1, 1], [1, 1, 2], [20, 30, 10], "line"),
        ([1, math.nan, 1], [1, 1], [10, 30], "line"),
    ],
)
def test_over_a_metric_points_are_in_order_and_have_a_line_if_it_goes_one_way(x, x_drawn, y_drawn, style):
    lines = [Line("train", np.array(x, np.float64), np.array([10.0, 20, 30]), PALETTE[0])]
    data = encode([Chart("loss", "Loss", lines)], axis="value", x_title="train/loss")
    line = decoded(data).charts[0].lines["train"]
    assert line.x.tolist() == pytest.approx(x_drawn) and len(set(line.x)) == len(x_drawn)
    assert sorted(line.y) == sorted(y_drawn) and line.style == style
    assert [y for at, y in zip(line.x, line.y, strict=True) if at > 1.5] == [
        y for at, y in zip(x_drawn, y_drawn, strict=True) if at > 1.5
    ]


def test_lines_of_a_chart_differ_by_more_than_their_colour():
    lines = [Line(color, STEPS[:9], STEPS[:9], color) for color in PALETTE]
    lines.append(Line("raw", STEPS[:9], STEPS[:9], PALETTE[1], "faint"))
    drawn = decoded(encode([Chart("loss", "Loss", lines)], axis="step", x_title="Step")).charts[0].lines
    assert len({drawn[color].dash for color in PALETTE}) == len(PALETTE)
    assert drawn["raw"].dash == (), "the pale values behind a smoothed line are not dashed"


def test_lines_have_enough_contrast_in_both_themes():
    def luminance(text: str) -> float:
        channels = [int(part, 16) / 255 for part in re.findall("..", text.lstrip("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for color, background in itertools.product(PALETTE, ("#ffffff", "#11151c")):
        light, dark = sorted((luminance(color), luminance(background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, color


CHECKED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot-LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def test_the_drawing_code_of_others_is_the_one_that_was_checked():
    assert {name: hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() for name in CHECKED} == CHECKED
