"""A slider over pre-drawn frames stands alone: static figure first, and no kernel or network needed."""

import re

from labkit import figures as plots
from labkit.figures.widgets import slider


def test_the_figure_of_the_start_comes_first_and_the_slider_holds_every_frame(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    drawn = []

    def draw(value):
        drawn.append(plots.message(f"at {value}"))
        return drawn[-1]

    slider(draw, [1, 2, 5], "step", start=1)
    assert shown[0] is drawn[1]
    html = shown[1].data
    assert len(re.findall(r'<img alt="[^"]+" [^>]*src="data:image/png;base64,[A-Za-z0-9+/=]+"', html)) == 3
    assert 'data-captions="step 1|step 2|step 5"' in html
    assert "<span>step 2</span>" in html
    assert not re.search(r"https?:", html)
