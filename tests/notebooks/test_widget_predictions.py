"""The explorer of predictions draws what its controls select, with a static figure before them."""

import json

import ipywidgets
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

import labkit
from labkit.config import Config
from labkit.errors import InputError
from labkit.figures import explorer as module
from labkit.figures import predictions as plots
from labkit.figures import widgets
from labkit.figures.explorer import PredictionExplorer
from labkit.run_directory import RunDirectory
from tests.notebooks.test_plots import CLASSES, make_predictions

FIGURE = plots.message("stands for a figure")


@pytest.fixture
def drawn(monkeypatch):
    """The examples of each page that is drawn."""
    found: list[list[int]] = []
    monkeypatch.setattr(
        plots, "prediction_grid", lambda predictions, indices: found.append(list(indices)) or FIGURE
    )
    return found


@pytest.fixture
def run(tmp_path):
    """A run that has predictions and no checkpoint."""
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    directory.config_path.write_text(json.dumps(Config.from_flat({"dataset": "shapes"}).to_json()))
    predictions = make_predictions()
    directory.predictions_path.mkdir(exist_ok=True)
    np.savez(
        directory.predictions_path / "test.npz",
        images=predictions.images,
        labels=predictions.labels,
        probabilities=predictions.probabilities,
        index=predictions.index,
    )
    summary = {"examples": 6, "classes": CLASSES, "checkpoint_step": 20}
    (directory.predictions_path / "test.json").write_text(json.dumps(summary))
    return directory


def controls_of(box: ipywidgets.VBox) -> dict[str, ipywidgets.Widget]:
    rows = [part.children[0] for part in box.children]
    return {control.description.split(" /")[0]: control for row in rows for control in row.children}


def test_it_draws_the_selected_examples_and_the_chosen_image_follows(drawn, monkeypatch):
    asked, said = [], []
    monkeypatch.setattr(
        PredictionExplorer, "detail", lambda self, index, patch=0: asked.append(index) or FIGURE
    )
    monkeypatch.setattr(plots, "message", lambda text: said.append(text) or FIGURE)
    box = PredictionExplorer(make_predictions()).widget()
    controls, (grid, detail) = controls_of(box), box.children
    assert (drawn[-1], asked[-1]) == ([4, 1], 4)  # both mistakes, the confident one first
    assert grid.children[1].layout.display == "none"  # the static figure shows the same
    assert detail.children[1].layout.display is None
    controls["true"].value = 0
    assert grid.children[1].layout.display is None
    assert (drawn[-1], asked[-1]) == ([1], 1)
    controls["mistakes only"].value = False
    assert sorted(drawn[-1]) == [0, 1]
    controls["true"].label = module.ANY
    assert controls["true"].index == 0  # the field isn't empty
    controls["predicted"].value = 2
    assert (drawn[-1], asked[-1]) == ([5], 5)
    controls["mistakes only"].value = True  # no other class is predicted as ship
    assert "No example matches this selection." in said and controls["image"].value is None


def test_every_example_is_on_exactly_one_page(drawn, monkeypatch):
    monkeypatch.setattr(module, "PAGE_SIZE", 4)
    controls = controls_of(PredictionExplorer(make_predictions()).widget())
    controls["mistakes only"].value = False
    first = drawn[-1]
    assert controls["page"].max == 2
    controls["page"].value = 2
    assert sorted(first + drawn[-1]) == list(range(6))
    controls["true"].value = 0  # two examples: one page, and the second no longer exists
    assert controls["page"].value == 1
    assert sorted(drawn[-1]) == [0, 1]


def test_the_probabilities_of_an_image_are_drawn_by_class():
    figure = PredictionExplorer(make_predictions()).detail(4)
    image, bars = figure.axes
    assert (image.get_title(loc="left"), image.get_xlabel()) == ("true: ship", "predicted: cat")
    assert [label.get_text() for label in bars.get_yticklabels()] == CLASSES
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], [0.95, 0.02, 0.03], atol=1e-6)


def test_a_square_asks_the_network_how_much_the_prediction_needs_each_part(run, monkeypatch):
    loaded = []

    class FakeNetwork:
        @staticmethod
        def probabilities(images):
            seen = (images[:, 0, 0] == images[:1, 0, 0]).all(axis=-1)
            return np.stack([np.where(seen, 0.9, 0.2), 0 * seen, 0 * seen], axis=1)

    monkeypatch.setattr(
        "labkit.analysis.network.load_network", lambda *given: loaded.append(given) or FakeNetwork
    )
    explorer = PredictionExplorer(run)
    with pytest.raises(
        InputError, match=f"step 20 is gone; labkit evaluate {run.path} makes new predictions"
    ):
        _ = explorer.network
    (run.checkpoints_path / "step-00000020").mkdir(parents=True)
    assert not loaded
    figures = [explorer.detail(4, patch) for patch in (4, 8)]
    assert [step for _, step in loaded] == ["20"]
    heat = figures[0].axes[2].get_images()[-1].get_array()
    assert heat[0, 0] == pytest.approx(0.7)
    assert heat[20, 20] == 0


def test_a_network_that_is_gone_is_said_and_predictions_alone_have_no_slider(run, monkeypatch):
    explorer = PredictionExplorer(run)
    said = []
    monkeypatch.setattr(plots, "message", lambda text: said.append(text) or FIGURE)
    assert explorer.detail(0, 4) is FIGURE
    assert "can't be loaded" in said[0]
    assert "cover" in controls_of(explorer.widget())
    assert "cover" not in controls_of(PredictionExplorer(make_predictions()).widget())


def test_a_run_is_given_as_object_directory_or_path(run):
    for given in (run, labkit.Run(run.path), str(run.path)):
        assert PredictionExplorer(given).predictions.classes == CLASSES
    with pytest.raises(InputError, match="no predictions of the split 'validation'"):
        PredictionExplorer(run, split="validation")


@pytest.mark.parametrize("interactive", [True, False])
def test_the_static_figure_is_always_shown_first(monkeypatch, interactive):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(widgets, "is_interactive", lambda: interactive)
    PredictionExplorer(make_predictions())._ipython_display_()
    assert "image/png" in DisplayFormatter().format(shown[0])[0]
    assert [type(item) for item in shown[1:]] == ([ipywidgets.VBox] if interactive else [])
