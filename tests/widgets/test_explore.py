"""Widgets draw what their controls select. A static figure is shown with or without them."""

import io

import ipywidgets
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from PIL import Image

from labkit import plots
from labkit.analysis.curves import Curves
from labkit.widgets import explore as widgets
from labkit.widgets import static_first
from tests.plots.test_plots import make_predictions, rows, worker_rows

FIGURE = plots.message("stands for a figure")


def controls_of(box: ipywidgets.VBox) -> dict[str, ipywidgets.Widget]:
    row, _ = box.children
    return {control.description.split(" /")[0]: control for control in row.children}


def picture(box: ipywidgets.VBox) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(box.children[1].value)))


def test_browser_draws_the_selected_examples(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        plots, "prediction_grid", lambda predictions, indices: drawn.append(list(indices)) or FIGURE
    )
    box = widgets.prediction_browser(make_predictions())
    controls = controls_of(box)
    assert drawn[-1] == [4, 1]  # both mistakes, the confident one first
    assert box.children[1].layout.display == "none"  # the static figure shows the same
    controls["true"].value = 0
    assert box.children[1].layout.display is None
    assert drawn[-1] == [1]
    controls["mistakes only"].value = False
    assert sorted(drawn[-1]) == [0, 1]
    controls["true"].value = None
    controls["predicted"].value = 2
    assert drawn[-1] == [5]


def test_browser_says_when_no_example_matches():
    box = widgets.prediction_browser(make_predictions())
    before = picture(box)
    controls_of(box)["predicted"].value = 2  # no other class is predicted as ship
    assert picture(box).shape != before.shape


def test_browser_shows_every_example_on_exactly_one_page(monkeypatch):
    monkeypatch.setattr(widgets, "PAGE_SIZE", 4)
    drawn = []
    monkeypatch.setattr(
        plots, "prediction_grid", lambda predictions, indices: drawn.append(list(indices)) or FIGURE
    )
    controls = controls_of(widgets.prediction_browser(make_predictions()))
    controls["mistakes only"].value = False
    first = drawn[-1]
    assert controls["page"].max == 2
    controls["page"].value = 2
    assert sorted(first + drawn[-1]) == list(range(6))
    controls["true"].value = 0  # two examples: one page, and the second no longer exists
    assert controls["page"].value == 1
    assert sorted(drawn[-1]) == [0, 1]


def test_curve_explorer_draws_with_the_selected_smoothing(monkeypatch):
    asked = []
    monkeypatch.setattr(plots, "training_curves", lambda curves, smoothing: asked.append(smoothing) or FIGURE)
    box = widgets.curve_explorer(Curves(rows(2.0, 1.0)), 0.9)
    controls_of(box)["smoothing"].value = 0.5
    assert asked == [0.9, 0.5]


def test_worker_explorer_draws_over_the_selected_axis(monkeypatch):
    asked = []
    monkeypatch.setattr(plots, "worker_throughput", lambda workers, over: asked.append(over) or FIGURE)
    box = widgets.worker_explorer({"worker:0": worker_rows([100.0])})
    controls_of(box)["over"].value = "step"
    assert asked == ["time", "step"]


@pytest.mark.parametrize("interactive", [True, False])
def test_the_static_figure_is_always_shown(monkeypatch, interactive):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(static_first, "is_interactive", lambda: interactive)
    widgets.browse_predictions(make_predictions())
    widgets.explore_curves(Curves(rows(2.0, 1.0)))
    widgets.explore_workers({"worker:0": worker_rows([100.0])})
    pictures = [item for item in shown if "image/png" in DisplayFormatter().format(item)[0]]
    live = [item for item in shown if isinstance(item, ipywidgets.VBox)]
    assert len(pictures) == 3
    assert len(live) == (3 if interactive else 0)
    assert shown[0] is pictures[0]


def test_a_plain_python_process_is_not_interactive():
    assert static_first.is_interactive() is False
