"""What is drawn of each line, and the figures of the dashboard."""

import hashlib
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.charts.board import PALETTE, Chart, Line, downsample, encode
from app.charts.component import ASSETS
from tests.app.boards import Board, Drawn, decoded

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


def test_a_peak_beside_a_dip_is_drawn_with_it():
    y = np.zeros(300_000)
    y[150_000], y[150_001] = 1.0, -1.0
    assert np.isin([150_000, 150_001], downsample(y, 1600)).all()


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


def test_values_that_are_not_finite_are_marked_and_break_the_line():
    line = drawn_line([1.0, 2.0, math.nan, 3.0, math.inf, -math.inf, 4.0])
    assert line.marks == {"NaN": (1, [3.0]), "+Infinity": (1, [5.0]), "−Infinity": (1, [6.0])}
    np.testing.assert_array_equal(line.y, [1.0, 2.0, math.nan, 3.0, math.nan, 4.0])


def test_a_curve_of_only_nan_is_marked():
    count, places = drawn_line([math.nan] * 5000).marks["NaN"]
    assert count == 5000
    assert 2 <= len(places) <= 400
    assert (places[0], places[-1]) == (1.0, 5000.0)


def test_a_logarithmic_axis_marks_what_it_has_no_place_for():
    line = drawn_line([1.0, 0.0, 2.0, -1.0, 3.0], logarithmic=True)
    assert line.marks == {"≤ 0": (2, [2.0, 4.0])}
    np.testing.assert_array_equal(line.y, [1.0, math.nan, 2.0, math.nan, 3.0])


def test_a_zoom_sends_the_points_in_it_and_one_on_either_side():
    line = drawn_line(np.arange(1000.0), window=(100.5, 110.5))
    assert line.x.tolist() == list(range(100, 112))
    assert line.of == 10
    beyond = drawn_line(np.arange(1000.0), window=(5000.0, 6000.0))
    assert (beyond.of, beyond.x.tolist()) == (0, [1000])


def test_lines_without_points_are_left_out_and_an_empty_board_has_no_extent():
    board = board_of_line([])
    assert board.extent is None
    assert board.charts[0].lines == {}


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
    for chart in board_of_line(y, window=window, logarithmic=logarithmic).charts:
        for line in chart.lines.values():
            assert (np.diff(line.x) >= 0).all()
            there = np.isfinite(line.y)
            np.testing.assert_array_equal(line.y[there], y[line.x[there].astype(int) - 1])
            assert not (logarithmic and (line.y[there] <= 0).any())


def test_lines_of_a_chart_differ_by_more_than_their_colour():
    lines = [Line(color, STEPS[:9], STEPS[:9], color) for color in PALETTE]
    lines.append(Line("raw", STEPS[:9], STEPS[:9], PALETTE[1], "faint"))
    drawn = decoded(encode([Chart("loss", "Loss", lines)], axis="step", x_title="Step")).charts[0].lines
    assert len({drawn[color].dash for color in PALETTE}) == len(PALETTE)
    assert drawn["raw"].dash == (), "the pale values behind a smoothed line are not dashed"


@pytest.mark.parametrize("background", ["#ffffff", "#11151c"])
@pytest.mark.parametrize("color", PALETTE)
def test_lines_have_enough_contrast_in_both_themes(color, background):
    def luminance(text: str) -> float:
        channels = [int(part, 16) / 255 for part in re.findall("..", text.lstrip("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    light, dark = sorted((luminance(color), luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_the_drawing_code_of_others_is_the_one_that_was_checked():
    digests = {
        name: hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()
        for name in ("uPlot.iife.min.js", "uPlot.min.css", "uPlot-LICENSE")
    }
    assert digests == {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uPlot-LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    }
