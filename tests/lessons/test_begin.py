"""The start of a lesson refuses parameters that have no effect in it; what lesson 00 shows."""

import importlib

import numpy as np
import pytest

from course.lessons import begin
from course.lessons.tour import files_of, variants
from labkit.errors import InputError
from labkit.notebook.parameters import parameters_from_values

module = importlib.import_module("course.lessons.begin")


@pytest.fixture
def parameters(monkeypatch, tmp_path):
    """Return what sets the values of the lesson's cell and those given from outside."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))

    def chosen(own, given):
        monkeypatch.setattr(module, "read_parameters", lambda: parameters_from_values(own, given))

    return chosen


@pytest.mark.parametrize(
    "given",
    [{"job_dir": "/tmp/x"}, {"overwrite": True}, {"strategy": "multi_worker"}],
    ids=lambda given: next(iter(given)),
)
def test_a_parameter_without_effect_is_refused_unless_the_lesson_sets_it(parameters, given):
    ((name, value),) = given.items()
    parameters({"num_layers": 8}, given)
    with pytest.raises(InputError, match="leave it out") as caught:
        begin("04_replicas")
    assert str(caught.value).startswith(f"{name} is {value!r}, but lesson 04_replicas chooses it itself")
    parameters({"num_layers": 8, **given}, given)
    assert begin("04_replicas").parameters.chosen[name] == value


def test_a_lesson_refuses_data_that_its_text_is_not_about(parameters):
    parameters({"dataset": "auto"}, {"dataset": "my-pics"})
    with pytest.raises(InputError, match="ten classes and 32×32 pixels.*run train.ipynb with 'my-pics'"):
        begin("00_tour")
    assert begin("search", own_data=True).config.data.dataset == "my-pics"
    parameters({"dataset": "auto"}, {"dataset": "shapes"})
    assert begin("00_tour").config.data.dataset == "shapes"


def test_a_strategy_gives_the_processes_of_a_training(parameters):
    own = {"strategy": "local", "num_workers": 2, "num_ps": 1}
    parameters(own, {})
    assert begin("00_tour").processes == {"workers": 1, "ps": 0}
    parameters(own, {"strategy": "multi_worker", "num_workers": 4})
    assert begin("00_tour").processes == {"workers": 4, "ps": 0}
    parameters(own, {"strategy": "parameter_server"})
    assert begin("00_tour").processes == {"workers": 2, "ps": 1}


# ---- lesson 00 ------------------------------------------------------------------------------------------


class FakeRun:
    def __init__(self, path):
        self.path = path


def test_the_files_of_a_run_are_listed_with_their_sizes(tmp_path):
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000001" / "state.json").write_bytes(bytes(2048))
    (tmp_path / "config.json").write_bytes(bytes(1024))
    (tmp_path / "of_the_user.txt").write_text("not a file of a run")
    listed = files_of(FakeRun(tmp_path))
    assert [row[::2] for row in listed] == [("config.json", "1 KiB"), ("checkpoints/", "2 KiB")]
    assert "every setting" in listed[0][1]


def test_variants_keep_the_shape_and_leave_the_image_alone():
    image = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    before = image.copy()
    found = variants(image)
    assert {(picture.shape, picture.dtype) for picture in found.values()} == {(image.shape, image.dtype)}
    np.testing.assert_array_equal(found["mirrored"][:, 0], image[:, -1])
    np.testing.assert_array_equal(found["upside down"][0], image[-1])
    np.testing.assert_array_equal(image, before)
