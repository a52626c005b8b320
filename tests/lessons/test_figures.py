"""The figures that lessons 10 to 14 share show what they are given, and say it in their text."""

import pytest
from matplotlib.colors import to_hex

from course.lessons.figures import grouped_bars, points_and_lines, stacked_bars, timelines


def test_points_and_the_line_of_the_same_name_have_one_colour_and_one_label():
    points = {"tree": ([1, 10], [3, 4]), "ring": ([1, 10], [5, 2])}
    lines = {"ring": ([1, 10], [5, 1]), "limit": ([1, 10], [6, 6])}
    figure = points_and_lines({"Seconds": ("bytes", points, lines)}, "ms", marks={"here": 5})
    drawn = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    of_ring = [line.get_color() for line in figure.axes[0].lines if list(line.get_ydata()) == [5, 1]]
    assert of_ring == [drawn["ring"]] != [drawn["tree"]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["limit", "tree", "ring", "here", "lines: predicted"]
    assert "Seconds, tree 3 to 4; Seconds, ring 2 to 5" in repr(figure)


def test_bars_over_time_are_in_the_row_of_their_worker_from_begin_to_end():
    spans = [(0, "forward:7", 0.0, 2.0), (1, "forward:8", 2.0, 3.0), (0, "backward:7", 3.0, 7.0)]
    figure = timelines({"run": spans}, {"run": ["first", "second"]})
    bars = figure.axes[0].patches
    assert [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in bars] == [
        (begin, end - begin, pytest.approx(worker)) for worker, _, begin, end in spans
    ]
    forward, _, backward = (to_hex(bar.get_facecolor()) for bar in bars)
    assert forward != backward
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["first", "second"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["7", "8", "7"]


def test_bars_have_the_heights_and_lengths_of_their_values():
    figure = grouped_bars({"a": {"predicted": {"x": 1, "y": 2}, "measured": {"x": 3, "y": 4}}}, "ms")
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1, 2, 3, 4]
    figure = stacked_bars({"one": {"a": 1, "b": 2}, "two": {"a": 4, "b": 3}}, "MB")
    lengths = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert lengths == [(0, 1), (1, 2), (0, 4), (4, 3)]
