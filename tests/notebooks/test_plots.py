"""The content of figures: their text, data and axes. Pixels aren't compared."""

import dataclasses
import io
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from labkit import figures as plots
from labkit.analysis.curves import Curves
from labkit.analysis.predictions import Predictions
from labkit.config import Config
from labkit.distributed.devices import Devices
from labkit.notebook.prepared import Prepared
from labkit.run_directory.rows import ResumePoint
from tests.own_data import write_own

CLASSES = ["cat", "dog", "ship"]


def make_predictions() -> Predictions:
    """Return six examples. Numbers 1 and 4 are wrong, and 4 is the more confident."""
    labels = np.array([0, 0, 1, 1, 2, 2])
    probabilities = np.array(
        [[0.9, 0.05, 0.05], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.95, 0.02, 0.03], [0, 0, 1]],
        np.float32,
    )
    images = np.arange(6 * 32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(6, 32, 32, 3)
    return Predictions(images, labels, probabilities, np.arange(6) + 100, CLASSES)


def rows(*losses: float) -> list[dict[str, object]]:
    common = {"split": "train", "accuracy": 0.5, "examples_per_second": 100.0}
    return [common | {"step": n, "loss": loss, "learning_rate": 0.1 * n} for n, loss in enumerate(losses, 1)]


def test_training_images_of_classes_that_look_like_a_formula_are_drawn(tmp_path):
    manifest = write_own(tmp_path, classes=(r"$\x$", "b" * 99))
    figure = Prepared(Config(), manifest, "", Devices("CPU", ("CPU:0",))).training_images(1)
    assert figure.axes[0].get_title() == r"\$\x\$" and len(figure.axes[1].get_title()) == 70
    assert plots.png(figure)


def test_training_images_with_other_colours_or_of_another_size_are_drawn_as_pixels(tmp_path):
    manifest = write_own(tmp_path)
    for given in ({"brightness": 0.2}, {"crop_size": 32}):
        config = Config.from_flat(given)
        figure = Prepared(config, manifest, "", Devices("CPU", ("CPU:0",))).training_images(1)
        shown = [axis.get_images()[0].get_array() for axis in figure.axes]
        assert {image.dtype for image in shown} == {np.dtype(np.uint8)}


def boxes(figure) -> list[list[Any]]:
    """Return where the titles of the images of a drawn figure stand, row by row."""
    FigureCanvasAgg(figure).draw()
    rows: dict[float, list[Any]] = {}
    for axis in figure.axes:
        if axis.get_title():
            rows.setdefault(round(axis.get_position().y0, 3), []).append(axis.title.get_window_extent())
    return list(rows.values())


def test_images_of_many_classes_with_long_names_are_drawn_side_by_side(tmp_path):
    classes = tuple(f"a long name of a class {number}" for number in range(30))
    manifest = write_own(tmp_path, classes=classes)
    figures = [Prepared(Config(), manifest, "", Devices("CPU", ("CPU:0",))).training_images(1)]
    predictions = dataclasses.replace(make_predictions(), classes=["Cats & dogs", classes[0], classes[1]])
    figures.append(plots.prediction_grid(predictions, [1, 4, 1, 4, 1, 4, 1, 4]))
    assert len(figures[0].axes) == 20
    for row in (row for figure in figures for row in boxes(figure)):
        assert all(left.x1 <= right.x0 for left, right in pairwise(row))


def test_of_labels_that_are_numbers_a_notebook_tells_their_names_and_draws_each_splits_error(tmp_path):
    manifest = dataclasses.replace(
        write_own(tmp_path), classes=("age",), target_mean=(3.0,), target_std=(2.0,)
    )
    assert "numbers: age" in repr(Prepared(Config(), manifest, "", Devices("CPU", ("CPU:0",))))
    errors = [{"split": split, "step": 2, "mean_absolute_error": 0.5} for split in ("train", "test")]
    figure = plots.training_curves(Curves([*rows(2.0, 1.0), *errors]), smoothing=0)
    assert figure.axes[1].get_title(loc="left") == "Mean absolute error"
    assert lines_by_label(figure.axes[1])["test"].get_xydata().tolist() == [[2, 0.5]]


def test_of_several_labels_the_scale_names_the_class_whose_probability_was_measured():
    whole = make_predictions()
    labels = np.eye(3, dtype=np.int32)[whole.labels]
    several = dataclasses.replace(whole, labels=labels, probabilities=np.full((6, 3), [0.6, 0.9, 0.1]))
    figure = plots.prediction_detail(several, 0, np.ones((32, 32)), 4)
    assert figure.axes[0].get_xlabel() == "predicted: cat, dog"
    assert figure.axes[3].get_ylabel() == "fall of the probability of dog"


def lines_by_label(axis) -> dict[str, object]:
    return {line.get_label(): line for line in axis.get_lines()}


def test_figures_need_neither_pyplot_nor_a_display():
    program = (
        "import sys; from labkit import figures as plots; assert 'matplotlib' not in sys.modules\n"
        "plots.png(plots.message('text')); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={"PATH": "/nowhere"})


def test_a_notebook_shows_a_figure_with_its_size_and_alternative_text():
    data, metadata = plots.message("nothing here")._repr_png_()
    assert metadata["alt"] == "nothing here"
    # Twice as many pixels as are shown.
    assert Image.open(io.BytesIO(data)).size[0] == 2 * metadata["width"]


def nothing_wrong():
    all_of = make_predictions()
    right = (all_of.images[:1], all_of.labels[:1], all_of.probabilities[:1], all_of.index[:1])
    return plots.wrong_predictions(Predictions(*right, CLASSES))


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plots.training_curves(Curves([])), None),
        (lambda: plots.image_grid(np.zeros((2, 8, 8, 1), np.uint8)), None),
        (lambda: plots.confusion_matrix(np.zeros((3, 3), int), CLASSES), None),
        (nothing_wrong, None),
        (lambda: plots.image_grid(np.zeros((0, 8, 8, 3), np.uint8)), "no image"),
        (lambda: plots.image_grid(np.zeros((2, 8, 8, 3), np.uint8), columns=0), "columns is 0; allowed"),
        (lambda: plots.image_grid(np.zeros((2, 8, 8, 3))), r"float64 \[8, 8, 3\]; allowed: uint8"),
        (lambda: plots.confusion_matrix(np.zeros((2, 3), int), CLASSES), r"allowed: \(3, 3\)"),
        (lambda: plots.worker_throughput({"worker:0": []}), "no row of a worker"),
    ],
    ids=[
        "no step",
        "grey",
        "no example",
        "no mistake",
        "no image",
        "no column",
        "floats",
        "wrong shape",
        "no row",
    ],
)
def test_little_to_show_is_drawn_and_nothing_to_show_is_refused(draw, said):
    if said is None:
        assert plots.png(draw())
        return
    with pytest.raises(ValueError, match=said):
        draw()


def test_image_grid_shows_each_image_once_with_its_title_and_row():
    images = make_predictions().images
    figure = plots.image_grid(images[:5], ["a", "b"], ["first", "second"], columns=3)
    shown = [axis.get_images()[0].get_array() for axis in figure.axes if axis.get_images()]
    np.testing.assert_array_equal(np.stack(shown), images[:5])
    assert [axis.get_title() for axis in figure.axes] == ["a", "b", "", "", "", ""]
    assert [axis.get_ylabel() for axis in figure.axes] == ["first", "", "", "second", "", ""]


def test_wrong_predictions_start_with_the_most_confident():
    predictions = make_predictions()
    figure = plots.wrong_predictions(predictions)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ["ship\n→ cat 95%", "cat\n→ dog 60%"]
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), predictions.images[4])
    assert len([axis for axis in plots.wrong_predictions(predictions, 1).axes if axis.get_images()]) == 1


def test_training_curves_draw_every_split_at_its_values_and_name_axes_and_units():
    more = [
        {"split": "validation", "step": 2, "loss": 1.5, "accuracy": 0.4},
        {"split": "test", "step": 2, "loss": 1.6, "accuracy": 0.3},
    ]
    figure = plots.training_curves(Curves(rows(2.0, 1.0) + more), smoothing=0)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Loss", "Accuracy", "Learning rate", "Speed"]
    units = (figure.axes[0].get_ylabel(), figure.axes[3].get_ylabel(), figure.axes[3].get_xlabel())
    assert units == ("mean of the examples", "examples per second", "step"), "of whichever loss"
    drawn = {name: line.get_xydata().tolist() for name, line in lines_by_label(figure.axes[0]).items()}
    expected = {"train": [[1, 2.0], [2, 1.0]], "validation": [[2, 1.5]], "test": [[2, 1.6]]}
    assert expected.items() <= drawn.items()


def test_training_curves_mark_resume_points_and_values_that_are_not_finite():
    figure = plots.training_curves(
        Curves(rows(2.0, float("nan"), 1.0), [ResumePoint(2, 0.0), ResumePoint(3, 0.0)])
    )
    lines = lines_by_label(figure.axes[0])
    assert lines["NaN or infinite"].get_xdata().tolist() == [2]
    assert "NaN or infinite" not in lines_by_label(figure.axes[2])
    for axis in figure.axes:
        dotted = [line.get_xdata()[0] for line in axis.get_lines() if line.get_linestyle() == ":"]
        assert dotted == [2, 3]
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend.count("resumed") == 1


def test_confusion_matrix_holds_counts_and_shares():
    confusion = np.array([[8, 2, 0], [0, 10, 0], [1, 0, 3]])
    figure = plots.confusion_matrix(confusion, CLASSES)
    axis = figure.axes[0]
    counts = {tuple(int(x) for x in text.get_position()): text.get_text() for text in axis.texts}
    # Positions are (predicted, true); empty cells stay empty.
    assert counts == {(0, 0): "8", (1, 0): "2", (1, 1): "10", (0, 2): "1", (2, 2): "3"}
    np.testing.assert_allclose(axis.get_images()[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0.25, 0, 0.75]])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted class", "true class")
    assert [label.get_text() for label in axis.get_yticklabels()] == CLASSES


def test_class_accuracy_of_known_predictions():
    axis = plots.class_accuracy(make_predictions()).axes[0]
    shown = {
        name.get_text(): bar.get_width()
        for name, bar in zip(axis.get_yticklabels(), axis.patches, strict=True)
    }
    assert shown == {"cat": 0.5, "ship": 0.5, "dog": 1.0}
    assert "66.7%" in axis.get_title(loc="left")


def test_loss_curves_are_running_means():
    figure = plots.loss_curves({"a": np.array([4.0, 2, 0, 6, 7]), "b": np.array([1.0])}, smoothing=2)
    first, second = figure.axes[0].lines
    np.testing.assert_allclose(first.get_ydata(), [4, 3, 1, 3, 6.5])
    np.testing.assert_allclose(second.get_ydata(), [1])


# ---- workers -------------------------------------------------------------------------------------------


def worker_rows(rates: list[float], start: float = 0.0, compute: float = 0.75) -> list[dict[str, object]]:
    """Return a row a second, as a worker writes it. A step has 50 examples, so a row has rate / 50 steps."""
    return [
        {
            "wall_time": start + number,
            "step": 10 * (number + 1),
            "steps": rate / 50,
            "examples_per_second": rate,
            "compute_fraction": compute,
            "communication_fraction": (1 - compute) * 0.8,
            "input_wait_fraction": (1 - compute) * 0.2,
        }
        for number, rate in enumerate(rates)
    ]


def test_each_worker_with_rows_has_a_line_over_time_or_steps():
    workers = {"worker:0": worker_rows([100.0, 200.0]), "worker:1": worker_rows([50.0, 60.0], 1.0)}
    axis = plots.worker_throughput({**workers, "worker:2": []}).axes[0]
    drawn = {name: line.get_xydata().tolist() for name, line in lines_by_label(axis).items()}
    assert drawn == {"worker:0": [[0, 100], [1, 200]], "worker:1": [[1, 50], [2, 60]]}
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("seconds of training", "examples per second")
    axis = plots.worker_throughput(workers, over="step").axes[0]
    assert lines_by_label(axis)["worker:1"].get_xdata().tolist() == [10, 20]
    assert axis.get_xlabel() == "step"
    axis = plots.worker_throughput({"worker:0": worker_rows([100.0] * 241)}).axes[0]
    assert axis.get_xlabel() == "minutes of training"
    assert lines_by_label(axis)["worker:0"].get_xdata()[-1] == 4


def test_a_long_pause_is_left_out_and_breaks_the_line_as_resuming_does():
    days = 3 * 86400.0
    workers = {"worker:0": worker_rows([100.0, 100.0]) + worker_rows([200.0, 200.0], days)}
    axis = plots.worker_throughput(workers).axes[0]
    x, y = lines_by_label(axis)["worker:0"].get_data()
    np.testing.assert_array_equal(x, [0, 1, np.nan, 1, 2])
    np.testing.assert_array_equal(y, [100, 100, np.nan, 200, 200])
    assert [line.get_xdata()[0] for line in axis.get_lines() if line.get_linestyle() == ":"] == [1]
    x = lines_by_label(plots.worker_throughput(workers, over="step").axes[0])["worker:0"].get_xdata()
    np.testing.assert_array_equal(x, [10, 20, np.nan, 10, 20])


def test_shares_are_means_over_time_and_add_up_to_one():
    # Three seconds at 0.9 and one at 0.5 (four steps at 50 examples each in 200/s).
    workers = {
        "worker:0": worker_rows([100.0] * 3, compute=0.9) + worker_rows([100.0], 3.0, compute=0.5),
        "worker:1": worker_rows([400.0]),
    }
    axis = plots.worker_throughput(workers).axes[1]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["worker:0\n100 examples/s", "worker:1\n400 examples/s"]
    compute, communication, waiting = (
        [bar.get_width() for bar in axis.patches[start : start + 2]] for start in (0, 2, 4)
    )
    np.testing.assert_allclose(compute, [0.8, 0.75])
    np.testing.assert_allclose(communication, [0.16, 0.2])
    np.testing.assert_allclose(np.sum([compute, communication, waiting], axis=0), 1)
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["compute", "communication", "input and waiting"]


def test_communication_that_is_not_measured_counts_as_computing_and_is_called_so():
    """As with several replicas and --deterministic; what is drawn after it stays where it is."""
    rows = [row | {"communication_fraction": np.nan} for row in worker_rows([100.0, 100.0])]
    axis = plots.worker_throughput({"worker:0": rows}).axes[1]
    compute, communication, waiting = axis.containers
    assert communication[0].get_width() == 0 and waiting[0].get_x() == compute[0].get_width() == 0.75
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["compute", "communication (not measured)", "input and waiting"]
