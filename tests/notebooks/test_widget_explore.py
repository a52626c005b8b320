"""Widgets draw what their controls select. A static figure is shown with or without them."""

import re

import ipywidgets
import pytest
from IPython.core.formatters import DisplayFormatter

from labkit import figures as plots
from labkit.analysis.curves import Curves
from labkit.errors import InputError
from labkit.figures import runs, widgets
from labkit.run_directory import RunDirectory
from tests.notebooks.test_plots import rows, worker_rows

FIGURE = plots.message("stands for a figure")


def controls_of(box: ipywidgets.VBox) -> dict[str, ipywidgets.Widget]:
    row, _ = box.children
    return {control.description.split(" /")[0]: control for control in row.children}


@pytest.mark.parametrize(
    ("explorer", "draws", "control", "chosen", "first"),
    [
        (lambda: widgets.curve_explorer(Curves(rows(2.0, 1.0))), "training_curves", "smoothing", 0.5, 0.9),
        (
            lambda: widgets.worker_explorer({"worker:0": worker_rows([100.0])}),
            "worker_throughput",
            "over",
            "step",
            "time",
        ),
    ],
    ids=["curves", "workers"],
)
def test_an_explorer_draws_what_its_control_selects(explorer, draws, control, chosen, first, monkeypatch):
    asked = []
    monkeypatch.setattr(runs, draws, lambda given, **options: asked.append(options[control]) or FIGURE)
    controls_of(explorer())[control].value = chosen
    assert asked == [first, chosen]


@pytest.mark.parametrize("interactive", [True, False])
def test_the_static_figure_is_always_shown(monkeypatch, interactive):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(widgets, "is_interactive", lambda: interactive)
    widgets.explore_curves(Curves(rows(2.0, 1.0)))
    monkeypatch.setattr(widgets, "read_worker_metrics", lambda folder: {"worker:0": worker_rows([100.0])})
    widgets.show_workers(RunDirectory("run"))
    pictures = [item for item in shown if "image/png" in DisplayFormatter().format(item)[0]]
    live = [item for item in shown if isinstance(item, ipywidgets.VBox)]
    assert len(pictures) == 2
    assert len(live) == (2 if interactive else 0)
    assert shown[0] is pictures[0]


def test_a_plain_python_process_is_not_interactive():
    assert widgets.is_interactive() is False


def test_a_slider_has_the_figure_of_its_start_before_it_and_holds_every_frame(monkeypatch):
    shown, drawn = [], []
    monkeypatch.setattr("IPython.display.display", shown.append)
    draw = lambda value: drawn.append(plots.message(f"at {value}")) or drawn[-1]  # noqa: E731
    widgets.slider(draw, [1, 2, 5], "step", start=1)
    assert shown[0] is drawn[1]
    html = shown[1].data
    assert len(re.findall(r'<img alt="[^"]+" [^>]*src="data:image/png;base64,[A-Za-z0-9+/=]+"', html)) == 3
    assert 'data-captions="step 1|step 2|step 5"' in html and "<span>step 2</span>" in html
    assert not re.search(r"https?:", html), "it needs no network"
    for values, start, words in (
        ([], 0, "values is empty"),
        ([1, 2], 2, "start is 2 of 2 values; allowed: 0 to"),
    ):
        with pytest.raises(InputError, match=words):
            widgets.slider(draw, values, "step", start=start)
