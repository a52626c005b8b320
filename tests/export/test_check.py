"""The metrics of a comparison equal values computed by hand, and exports are replaced atomically."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.export.output import FORMATS, check_output, folder_beside, publish
from labkit.export.write import compare_outputs
from labkit.training.losses import SIGMOID

OWN = np.array([[-8, 1, 2], [4, 1, 0], [0, 1, 3]], np.float32)
LABELS = np.array([2, 0, 1], np.int32)


def test_metrics_equal_values_computed_by_hand():
    exported = OWN + np.array([[0, 0, 0], [-3.5, 0, 0], [0, 0.5, 0]], np.float32)
    found = compare_outputs(exported, OWN, LABELS)
    assert (found.examples, found.max_difference, found.scale) == (3, 3.5, 8.0)
    assert found.equal_predictions == pytest.approx(2 / 3)
    assert (found.accuracy_exported, found.accuracy_run) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert not found.passed


@pytest.mark.parametrize(("difference", "passed"), [(7e-5, True), (9e-5, False), (np.nan, False)])
def test_the_tolerance_is_relative_to_the_largest_output(difference, passed):
    own = OWN.astype(np.float64)
    exported = own + np.array([[0, 0, 0], [difference, 0, 0], [0, 0, 0]])
    assert compare_outputs(exported, own, LABELS).passed == passed


@pytest.mark.parametrize("probabilities", [False, True])
def test_a_multi_label_prediction_counts_only_if_all_labels_are_right(probabilities):
    own = np.array([[2, -1], [1, 3], [-2, -3.0]])
    exported = own + np.array([[0, 0], [0, 0], [0, 4.0]])
    labels = np.array([[1, 0], [1, 0], [0, 0]])
    outputs = [SIGMOID.probabilities(logits) if probabilities else logits for logits in (exported, own)]
    found = compare_outputs(*outputs, labels, loss=SIGMOID, probabilities=probabilities)
    assert found.equal_predictions == pytest.approx(2 / 3)
    assert (found.accuracy_exported, found.accuracy_run) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_checking_does_not_create_the_folder(tmp_path):
    check_output(tmp_path / "new" / "a.keras", FORMATS["keras"], overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_export_is_replaced_together_with_its_description(tmp_path, is_folder):
    path = tmp_path / "new" / "export"
    for content in ("first", "second"):
        with folder_beside(path) as folder:
            written = folder / path.name
            if is_folder:
                written.mkdir()
                (written / content).write_text("")
            else:
                written.write_text(content)
            publish(written, path, {"content": content})
    assert sorted(child.name for child in path.parent.iterdir()) == ["export", "export.json"]
    assert json.loads((path.parent / "export.json").read_text()) == {"content": "second"}
    assert (
        [child.name for child in path.iterdir()] == ["second"] if is_folder else path.read_text() == "second"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where no file can be created")
def test_a_folder_that_cannot_be_created_is_named():
    with (
        pytest.raises(InputError, match="--output /proc/net.keras can't be written"),
        folder_beside(Path("/proc/net.keras")),
    ):
        pass
