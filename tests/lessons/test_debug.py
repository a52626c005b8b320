"""What lesson 06 measures is so: patients have the faults that they are said to have, and no others."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from course.lessons.commands import exercise_cells, student_code
from course.lessons.debug import broken, probes
from course.lessons.debug.events import Histogram, percentiles
from course.lessons.debug.patients import CLASSES, Patient, digits, leaky_split, train_on
from labkit.notebook.files import find_notebook, read_notebook


def test_digits_are_standardized_and_the_same_for_a_seed():
    images, labels = digits(200, seed=3)
    again, _ = digits(200, seed=3)
    assert np.array_equal(images, again)
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-5
    assert abs(images.std() - 1) < 1e-5
    assert set(labels) == set(range(CLASSES))


@pytest.mark.parametrize("fault", ["", "softmax"])
def test_the_update_is_that_of_the_numerical_gradient(fault):
    images, labels = Patient(fault).batch(1)
    moved = Patient(fault, learning_rate=1.0)
    before = moved.weights()
    moved.step(images, labels)
    for name, place in (("hidden/kernel", (70, 5)), ("logits/kernel", (5, 3)), ("logits/bias", (3,))):
        losses = []
        for change in (1e-5, -1e-5):
            patient = Patient(fault)
            patient._weights[name][place] += change
            losses.append(patient.loss(images, labels))
        numerical = (losses[0] - losses[1]) / 2e-5
        assert before[name][place] - moved.weights()[name][place] == pytest.approx(
            numerical, rel=1e-3, abs=1e-8
        )


@pytest.mark.parametrize("fault", ["labels", "input", "dead", "rate"])
def test_the_loss_of_four_patients_is_flat_and_the_sound_one_is_not(fault):
    assert Patient(fault).train(60)[-10:].mean() == pytest.approx(math.log(10), abs=0.15)
    assert Patient().train(60)[-10:].mean() < 0.4


def test_a_loss_behind_two_softmaxes_comes_to_its_floor_and_not_below():
    floor = math.log(1 + (CLASSES - 1) / math.e)
    losses = probes.one_batch_losses(Patient("softmax"), 1500)
    assert floor < losses[-1] < floor + 0.05
    assert np.allclose(Patient("softmax").outputs(Patient().batch(1)[0]).sum(axis=1), 1)


def test_copies_raise_the_validation_accuracy_and_nothing_else():
    gaps = []
    for copied in (0.0, 0.9):
        split = leaky_split(150, copied, seed=4)
        assert abs(split.is_copy.mean() - copied) < 0.1
        _, accuracy = train_on(split, 60)
        gaps.append(accuracy["validation"][-1] - accuracy["new"][-1])
    assert abs(gaps[0]) < 0.15
    assert gaps[1] > 0.3


def test_dependency_shows_who_depends_on_whom():
    images = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    alone = probes.dependency(lambda shown: 2 * shown, images)
    assert np.array_equal(alone > 0, np.eye(4, dtype=bool))
    neighbour = probes.dependency(lambda shown: np.roll(shown, 1, axis=0), images)
    assert np.array_equal(neighbour > 0, np.roll(np.eye(4, dtype=bool), 1, axis=0))
    assert (probes.dependency(lambda shown: shown - shown.mean(axis=0), images) > 0).all()


def test_percentiles_of_a_histogram_are_those_of_its_values():
    values = np.random.default_rng(1).normal(size=20_000)
    counts, edges = np.histogram(values, bins=200)
    found = percentiles(Histogram(1, edges, counts.astype(float)), (7, 50, 93))
    assert np.allclose(found, np.percentile(values, (7, 50, 93)), atol=0.05)


def test_a_scripted_debugger_stops_where_the_function_says():
    def add(first, second):
        total = first + second
        breakpoint()
        return total

    said = probes.scripted_pdb(lambda: add(2, 3), ["p total", "p second", "q"])
    assert "(Pdb) p total\n5\n" in said
    assert "(Pdb) p second\n3\n" in said
    assert "test_debug" not in said


def test_run_tests_says_of_each_test_how_it_ended(capsys):
    import unittest

    class Case(unittest.TestCase):
        def test_good(self):
            pass

        def test_bad(self):
            raise AssertionError("one is not two")

        def test_worse(self):
            {}["key"]

    assert not probes.run_tests(Case)
    said = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in said] == ["FAIL", "ok  ", "FAIL"]
    assert "AssertionError: one is not two" in said[0]
    assert "KeyError: 'key'" in said[2]


def test_numerics_report_names_the_operation_and_is_off_afterwards():
    import tensorflow as tf

    zero = tf.constant([1.0, 0.0])
    assert '"Log"' in probes.numerics_report(lambda: tf.math.log(zero))
    assert probes.numerics_report(lambda: tf.math.xlogy(zero, zero)) == "every result is finite"
    tf.math.log(zero)


def test_the_cells_show_the_code_of_patients_3_and_4():
    cells = exercise_cells(read_notebook(find_notebook("06")))
    module = ast.parse(Path(broken.__file__).read_text())
    for number, name in (("06.3", "broken_update"), ("06.4", "broken_network")):
        shown, used = (_function(tree, name) for tree in (ast.parse(student_code(cells[number])), module))
        assert ast.unparse(shown) == ast.unparse(used)


def _function(tree, name):
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)


def test_a_timeline_has_the_operations_of_each_thread(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from course.lessons.debug.timeline import draw_timeline, operations

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    for number, (name, shown) in enumerate((("a:Conv2D", "Conv2D"), ("b:Relu", "Relu"), ("step", ""))):
        plane.event_metadata[number].name, plane.event_metadata[number].display_name = name, shown
    for thread, first in (("tf_Compute/1", 5_000), ("tf_Compute/2", 8_000), ("tf_data/3", 0)):
        line = plane.lines.add(name=thread, timestamp_ns=first)
        for number in range(3):
            line.events.add(metadata_id=number, offset_ps=1_000_000 * number, duration_ps=500_000)
    folder = tmp_path / "events/plugins/profile/now"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(space.SerializeToString())
    spans = operations(tmp_path)
    assert [(span.thread, span.kind) for span in spans] == [
        (0, "convolution, forward"), (0, "elementwise"), (1, "convolution, forward"), (1, "elementwise"),
    ]  # fmt: skip
    assert [span.start for span in spans] == pytest.approx([0, 1e-6, 3e-6, 4e-6])
    assert "Operations" in repr(draw_timeline(spans))
