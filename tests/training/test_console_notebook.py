"""Progress in a notebook: one output, replaced in place, that is complete when it is saved."""

import itertools
import re

import IPython.display
import pytest

from labkit.training.console import _NotebookBar


class Handle:
    """Stands for the display handle; keeps what is shown."""

    def __init__(self, shown):
        self.shown = shown

    def update(self, bundle, raw):
        assert raw
        self.shown = bundle


@pytest.fixture
def handle(monkeypatch):
    handle = Handle(None)

    def display(bundle, raw, display_id):
        handle.shown = bundle
        return handle

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(_NotebookBar, "SECONDS_BETWEEN_UPDATES", 0)
    return handle


def points(html: str) -> list[tuple[float, float]]:
    (text,) = re.findall(r"points='([^']*)'", html)
    return [tuple(map(float, point.split(","))) for point in text.split()]


def test_what_stays_is_the_last_state_in_text_and_html(handle):
    bar = _NotebookBar(0, 200)
    bar.update(50, "loss <1>")
    bar.stop()
    assert handle.shown["text/plain"] == "50/200 steps (25%)  loss <1>"
    assert "width:25.00%" in handle.shown["text/html"]
    assert "loss &lt;1&gt;" in handle.shown["text/html"]
    assert "<svg" not in handle.shown["text/html"]


def test_losses_become_a_curve_over_the_whole_run(handle):
    bar = _NotebookBar(0, 4)
    for step, loss in enumerate((4.0, 2.0, float("nan"), 1.0), 1):
        bar.update(step, "", loss)
    width, height = _NotebookBar.WIDTH, _NotebookBar.HEIGHT
    assert points(handle.shown["text/html"]) == [
        (width / 4, 0),
        (width / 2, height / 2),
        (width, height * 3 / 4),
    ]


def test_a_long_run_keeps_a_bounded_number_of_points_over_all_of_it(handle):
    total = 10 * _NotebookBar.MAX_POINTS
    bar = _NotebookBar(0, total)
    for step in range(1, total + 1):
        bar.update(step, "", float(step))
    drawn = points(handle.shown["text/html"])
    assert _NotebookBar.MAX_POINTS / 4 <= len(drawn) <= _NotebookBar.MAX_POINTS
    assert drawn[0][0] < 0.02 * _NotebookBar.WIDTH
    assert drawn[-1][0] > 0.98 * _NotebookBar.WIDTH
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(drawn)]
    assert max(gaps) == pytest.approx(min(gaps), abs=0.2)
