"""The horizontal axis of the charts: time without pauses, the zoom, and both of them in the URL."""

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.charts.store import CurveStore, Timeline, timeline_of
from labkit.run_directory.metrics import MetricsWriter
from tests.app.boards import Board, boards
from tests.app.conftest import evaluation_row, train_row
from tests.app.test_pages import checked, open_page


def open_with(run, page: str = "live", **url: str) -> AppTest:
    at = AppTest.from_string(f"from app.views import {page}\n{page}.page()", default_timeout=30)
    at.session_state["run"] = str(run.path)
    for name, value in url.items():
        at.query_params[name] = value
    return checked(at.run())


def board(at: AppTest) -> Board:
    (found,) = boards(at)
    return found


def timeline_after(path, *parts) -> Timeline:
    """Return the timeline of rows and resume points: ``(step, wall_time)`` and ``step``."""
    writer = MetricsWriter(path)
    for part in parts:
        if isinstance(part, int):
            writer.append([{"resumed_at_step": part, "wall_time": 1e6}])
        else:
            writer.append([train_row(part[0], wall_time=part[1])])
    writer.close()
    return timeline_of(CurveStore(path).poll())


# ---- time ----------------------------------------------------------------------------------------------


def test_time_spent_training_leaves_out_pauses(tmp_path):
    hour = 3600.0
    timeline = timeline_after(
        tmp_path / "m", (1, 10.0), (2, 12.0), (3, 14.0), 2, (3, hour), (4, hour + 2), (5, hour + 4)
    )
    assert timeline.step.tolist() == [1, 2, 3, 4, 5]
    assert timeline.seconds.tolist() == [0, 2, 4, 6, 8], (
        "the first step after a pause took as long as the next"
    )
    assert timeline.clock.tolist() == [10, 12, hour, hour + 2, hour + 4]


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


def test_curves_and_resume_points_go_with_a_clock_that_was_set_back(tmp_path):
    path = tmp_path / "m"
    times = [1000.0, 1002.0, 904.0, 906.0]
    writer = MetricsWriter(path)
    writer.append([train_row(step, wall_time=when) for step, when in enumerate(times, 1)])
    writer.append([evaluation_row(2, wall_time=1002.5), evaluation_row(4, wall_time=906.5)])
    metrics = CurveStore(path).poll()
    timeline = timeline_of(metrics)
    assert timeline.clock.tolist() == pytest.approx([901.7, 903.7, 904, 906])
    assert (
        timeline.x(metrics.curve("validation", "loss"), "clock").tolist() == timeline.clock[[1, 3]].tolist()
    )


def test_an_evaluation_stands_where_its_step_ended(tmp_path):
    path = tmp_path / "m"
    writer = MetricsWriter(path)
    writer.append([train_row(step, wall_time=100.0 + step) for step in range(1, 11)])
    writer.append([evaluation_row(5, wall_time=1e9)])
    metrics = CurveStore(path).poll()
    assert timeline_of(metrics).x(metrics.curve("validation", "loss"), "training").tolist() == [4]


# ---- the axis in the URL -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        ("epoch", "epoch"),
        ("EPOCH", "epoch"),
        ("Training time", "seconds"),
        ("training", "seconds"),
        ("Wall clock", "clock"),
        ("clock", "clock"),
        ("time", "seconds"),  # of an older version
        ("nonsense", "step"),
        ("", "step"),
        ("<b>", "step"),
    ],
)
def test_the_url_names_the_axis_in_any_case(make_run, given, axis):
    assert board(open_with(make_run(), x=given)).axis == axis


# ---- the zoom ------------------------------------------------------------------------------------------


def test_the_zoom_of_the_url_is_drawn(make_run):
    at = open_with(make_run(), zoom="20,60.5")
    assert board(at).window == [20, 60.5]
    assert board(at).charts[0].lines["train"].of == 41
    assert board(checked(at.run())).window == [20, 60.5]


@pytest.mark.parametrize("zoom", ["", ",", "1", "a,b", "1,2,3", "nan,3", "1,inf", "9,3", "5,5", "<b>,1"])
def test_nonsense_in_the_url_is_no_zoom(make_run, zoom):
    assert board(open_with(make_run(), zoom=zoom)).window is None


def test_the_zoom_shows_the_same_steps_on_another_axis(make_run):
    at = open_with(make_run(), zoom="20,60")
    for axis, window in {"epoch": [0.4, 1.2], "training": [19, 59], "step": [20, 60]}.items():
        at.get("button_group")[0].set_value(axis)
        assert board(checked(at.run())).window == pytest.approx(window)
        given = at.query_params["zoom"]
        given = given if isinstance(given, str) else given[0]
        assert [float(part) for part in given.split(",")] == pytest.approx(window)


def test_the_comparison_has_the_zoom_of_the_other_charts(make_run):
    run = make_run()
    make_run("second")
    at = open_with(run, "compare", zoom="20,60")
    assert board(at).window == [20, 60]
    assert {line.of for line in board(at).charts[0].lines.values()} == {41}


def test_a_zoom_beyond_the_run_draws_an_empty_part_of_it(make_run):
    at = open_with(make_run(), zoom="5000,6000")
    assert board(at).charts[0].lines["train"].of == 0


def test_a_run_without_metrics_has_no_zoom(make_run):
    run = make_run()
    run.metrics_path.write_bytes(b"")
    assert not boards(open_with(run, zoom="20,60", x="Wall clock"))
    assert not boards(open_page("live", run))
