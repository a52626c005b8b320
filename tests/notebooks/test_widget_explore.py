"""Widgets draw what their controls select. A static figure is shown with or without them."""

import ipywidgets
import pytest
from IPython.core.formatters import DisplayFormatter

from labkit import figures as plots
from labkit.analysis.curves import Curves
from labkit.figures import runs, widgets
from tests.notebooks.test_plots import rows, worker_rows

FIGURE = plots.message("stands for a figure")


def controls_of(box: ipywidgets.VBox) -> dict[str, ipywidgets.Widget]:
    row, _ = box.children
    return {control.description.split(" /")[0]: control for control in row.children}


def test_curve_explorer_draws_with_the_selected_smoothing(monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "training_curves", lambda curves, smoothing: asked.append(smoothing) or FIGURE)
    box = widgets.curve_explorer(Curves(rows(2.0, 1.0)))
    controls_of(box)["smoothing"].value = 0.5
    assert asked == [0.9, 0.5]


def test_worker_explorer_draws_over_the_selected_axis(monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "worker_throughput", lambda workers, over: asked.append(over) or FIGURE)
    box = widgets.worker_explorer({"worker:0": worker_rows([100.0])})
    controls_of(box)["over"].value = "step"
    assert asked == ["time", "step"]


@pytest.mark.parametrize("interactive", [True, False])
def test_the_static_figure_is_always_shown(monkeypatch, interactive):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(widgets, "is_interactive", lambda: interactive)
    widgets.explore_curves(Curves(rows(2.0, 1.0)))
    widgets.explore_workers({"worker:0": worker_rows([100.0])})
    pictures = [item for item in shown if "image/png" in DisplayFormatter().format(item)[0]]
    live = [item for item in shown if isinstance(item, ipywidgets.VBox)]
    assert len(pictures) == 2
    assert len(live) == (2 if interactive else 0)
    assert shown[0] is pictures[0]


def test_a_plain_python_process_is_not_interactive():
    assert widgets.is_interactive() is False
