"""What the figures of the dashboard show."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.charts.lines import MAX_POINTS, Line, downsample, last_steps
from app.charts.plotly_figures import PALETTE, curve_figure
from app.charts.store import Curve
from app.images.confusion import confusion_figure
from labkit.run_directory.metrics import ResumePoint


def curve(y: list[float] | np.ndarray, start: int = 1) -> Curve:
    step = np.arange(start, start + len(y), dtype=np.float64)
    return Curve(step, step / 10, 1_700_000_000 + 6 * step, np.asarray(y, np.float64))


def trace(figure, name: str):
    return next(trace for trace in figure.data if trace.name == name)


@given(index=st.integers(0, 299_999), height=st.sampled_from([-50.0, 50.0]))
@settings(max_examples=30, deadline=None)
def test_a_spike_of_one_step_among_300000_is_drawn(index, height):
    y = np.random.default_rng(0).normal(size=300_000)
    y[index] = height
    kept = downsample(y)
    assert index in kept
    assert len(kept) <= MAX_POINTS + 2


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


def test_a_peak_beside_a_dip_is_drawn_with_it():
    y = np.zeros(300_000)
    y[150_000], y[150_001] = 1.0, -1.0
    assert np.isin([150_000, 150_001], downsample(y)).all()


def test_values_that_are_not_finite_are_marked_and_break_the_line():
    y = [1.0, 2.0, math.nan, 3.0, math.inf, -math.inf, 4.0]
    figure = curve_figure([Line("train", curve(y), "#2f7fd1")], title="Loss")
    assert list(trace(figure, "train: NaN × 1").x) == [3.0]
    assert list(trace(figure, "train: +Infinity × 1").x) == [5.0]
    assert list(trace(figure, "train: −Infinity × 1").x) == [6.0]
    assert trace(figure, "train: NaN × 1").yaxis == "y2"
    drawn = trace(figure, "train")
    np.testing.assert_array_equal(drawn.y, [1.0, 2.0, math.nan, 3.0, math.nan, 4.0])


def test_a_curve_of_only_nan_is_marked():
    figure = curve_figure([Line("train", curve([math.nan] * 5000), "#2f7fd1", 0.9)], title="Loss")
    marks = trace(figure, "train: NaN × 5,000")
    assert 2 <= len(marks.x) <= 400
    assert (marks.x[0], marks.x[-1]) == (1.0, 5000.0)


@pytest.mark.parametrize(
    ("x_axis", "expected"), [("step", (1, 3)), ("epoch", (0.1, 0.3)), ("time", (0.0, 0.2))]
)
def test_points_and_resume_points_on_every_axis(x_axis, expected):
    resume_point = ResumePoint(3, 1_700_000_000 + 18)
    figure = curve_figure(
        [Line("train", curve([3, 2, 1]), "#2f7fd1")],
        title="Loss",
        x_axis=x_axis,
        resume_points=[resume_point],
    )
    drawn = trace(figure, "train")
    assert (drawn.x[0], drawn.x[-1]) == pytest.approx(expected)
    assert figure.layout.shapes[0].x0 == pytest.approx(expected[1])
    assert "resumed at 3" in [note.text for note in figure.layout.annotations]


def test_the_raw_curve_is_drawn_behind_the_smoothed_one():
    y = np.random.default_rng(2).normal(size=100)
    figure = curve_figure([Line("train", curve(y), "#2f7fd1", smoothing=0.9)], title="Loss")
    np.testing.assert_array_equal(trace(figure, "train, raw").y, y)
    assert trace(figure, "train, raw").opacity < 0.5
    assert np.ptp(trace(figure, "train").y) < np.ptp(y)


def test_the_zoom_is_kept_for_new_points_but_not_for_another_axis():
    def drawn(count: int, **options: object):
        return curve_figure([Line("train", curve(np.ones(count)), "#2f7fd1")], title="Loss", **options)

    assert drawn(10).layout.uirevision == drawn(2000).layout.uirevision
    assert drawn(10).layout.uirevision != drawn(10, x_axis="time").layout.uirevision
    assert drawn(10).layout.uirevision != drawn(10, log_y=True).layout.uirevision


def test_a_curve_without_points_gives_an_empty_chart():
    figure = curve_figure(
        [Line("train", curve([]), "#2f7fd1")], title="Loss", resume_points=[ResumePoint(3, 0.0)]
    )
    assert len(figure.data) == 0


def test_the_last_steps_are_counted_in_steps_not_in_rows():
    rows = curve(np.arange(10.0))
    every_fifth = Curve(rows.step * 5, rows.epoch, rows.wall_time, rows.y)
    assert last_steps(every_fifth, 10, end=50).step.tolist() == [45, 50]
    assert last_steps(every_fifth, None, end=50) is every_fifth


def test_the_confusion_matrix_has_true_classes_in_rows_and_clickable_cells():
    confusion = np.array([[8, 2], [0, 0]])
    figure = confusion_figure(confusion, ["cat", "dog"])
    heat, cells = figure.data
    np.testing.assert_allclose(heat.z, [[0.8, 0.2], [0, 0]])
    by_cell = dict(
        zip(map(tuple, cells.customdata), zip(cells.x, cells.y, cells.text, strict=True), strict=True)
    )
    assert by_cell[(0, 1)] == (1, 0, "2")
    assert by_cell[(1, 0)] == (0, 1, "")
    assert "cat predicted as dog: 2 (20.0% of cat)" in cells.hovertext


@pytest.mark.parametrize("background", ["#ffffff", "#11151c"])
@pytest.mark.parametrize("color", PALETTE)
def test_lines_have_enough_contrast_in_both_themes(color, background):
    def luminance(text: str) -> float:
        channels = [int(part, 16) / 255 for part in re.findall("..", text.lstrip("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    light, dark = sorted((luminance(color), luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3
