"""``labkit.start_run``: what another program records is a run, whatever happens to the program."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit.analysis.results import differing, grouped, read_results
from labkit.config.config import describe, recorded_config
from labkit.errors import InputError
from labkit.recording import recorder as module
from labkit.recording.imports import import_csv
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import RunLock
from labkit.run_directory.media import INDEX, MediaReader, read_image
from labkit.run_directory.reader import read_metrics
from labkit.run_directory.summary import Summaries
from labkit.training.recorded_predictions import record_predictions

ENDLESS: dict[str, dict] = {}
ENDLESS["itself"] = ENDLESS


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    return tmp_path


def script(home, text: str) -> subprocess.Popen:
    environment = {**os.environ, "LABKIT_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_what_is_logged_is_read_as_of_any_run():
    with labkit.start_run("mine", {"model": "own", "width": 7}, total_steps=4) as run:
        for step in range(1, 5):
            run.log(
                step, loss=np.float32(1 / step), learning_rate=0.5, grad_norm=float("inf") if step == 2 else 1
            )
            if step % 2 == 0:
                run.log(step, split="validation", loss=2.0, accuracy=step / 10)
        assert labkit.load_run("mine").state == "running"
    found = labkit.load_run("mine")
    assert (found.state, found.step) == ("finished", 4)
    assert found.metrics()["loss"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert found.metrics()["grad_norm"].tolist() == [1, np.inf, 1, 1]
    assert found.metrics("validation")["accuracy"].tolist() == [0.2, 0.4]
    summary = RunDirectory(found.path).read_status().metrics
    assert (summary["last_step"], summary["best_accuracy"]) == (4, 0.4)


def test_no_secret_of_the_command_line_is_recorded(home, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mine.py", "--api-key", "k3y", "--rate=1"])
    with labkit.start_run("own"):
        pass
    (home / "log.csv").write_text("step,loss\n1,0.5\n")
    import_csv(home / "log.csv", name="imported")
    for name in ("own", "imported"):
        record = json.loads(RunDirectory(labkit.load_run(name).path).environment_path.read_text())
        assert record["command"] == ["mine.py", "--api-key", "***", "--rate=1"]


@pytest.mark.parametrize(("total", "steps"), [(50, 8), (5, 8)])
def test_the_end_of_a_with_block_finishes_a_run_at_whatever_step(total, steps):
    with labkit.start_run("own", total_steps=total) as run:
        run.log(steps, loss=1.0)
    found = labkit.load_run("own")
    assert (found.state, found.step, found.status.total_steps) == ("finished", steps, total)
    row = "| `run.finish()`, or the `with` block ends without an error, at whatever step | `finished` |"
    assert row in (Path(__file__).parents[2] / "docs" / "recording.md").read_text()


def test_a_split_is_the_one_that_pages_show_by_whatever_word_it_is_called():
    with labkit.start_run("own") as run:
        run.log(1, split="training", loss=3.0)
        run.log(1, split="Val", loss=2.0)
        run.log(1, split="calibration", loss=1.0)
        with pytest.raises(InputError, match="step 1 comes after step 1 of validation"):
            run.log(1, split="validation", loss=2.5)
    splits = [row["split"] for row in read_metrics(RunDirectory(run.path))]
    assert splits == ["train", "validation", "calibration"]


def test_arrays_and_tensors_of_one_number_are_taken_whatever_their_axes():
    import tensorflow as tf

    with labkit.start_run("mine") as run:
        for step, shape in enumerate([(), (1,), (1, 1)], 1):
            tensor = tf.fill(shape, 2.5)
            run.log(step, array=tensor.numpy(), tensor=tensor, variable=tf.Variable(tensor))
        with pytest.raises(InputError, match="a number, or an array of one"):
            run.log(9, tensor=tf.constant([1.0, 2.0]))
    rows = labkit.load_run("mine").metrics()
    assert all(rows[name].tolist() == [2.5] * 3 for name in ("array", "tensor", "variable"))


def test_a_tensor_with_gradients_is_taken_as_pytorch_wants_it():
    class Tensor:
        def item(self):
            return 0.25

        def __float__(self):  # of which PyTorch warns
            raise AssertionError

    with labkit.start_run("mine") as run:
        run.log(1, loss=Tensor())
    assert labkit.load_run("mine").metrics()["loss"].tolist() == [0.25]


def test_settings_of_any_kind_are_read_again():
    settings = {"rate": float("nan"), "most": [float("inf"), 1], "shape": (2, 3), "path": Path("a")}
    labkit.start_run("mine", settings).finish()
    found = RunDirectory(labkit.load_run("mine").path).read_config()["settings"]
    assert found == {"rate": "NaN", "most": ["Infinity", 1], "shape": [2, 3], "path": "a"}


def test_nothing_heavy_is_imported(home):
    code = (
        "import sys, labkit\n"
        "with labkit.start_run('x') as run: run.log(1, loss=1.0)\n"
        "assert not {'tensorflow', 'keras', 'tensorboard'} & set(sys.modules)"
    )
    started = script(home, code)
    assert started.wait(60) == 0, started.stderr.read()


def test_media_and_predictions():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (30, 4, 4, 3), dtype=np.uint8), rng.integers(0, 3, 30)
    probabilities = np.full((30, 3), 0.2)
    probabilities[np.arange(30), np.where(np.arange(30) < 24, labels, (labels + 1) % 3)] = 0.6
    with labkit.start_run("mine") as run:
        run.log(7, loss=1.0)
        run.log_image(7, "filters", rng.random((8, 8)))
        run.log_histogram(7, "weights", rng.normal(size=50))
        run.log_text(7, "note", "hello")
        metrics = run.predictions("test", images, labels, probabilities, classes=["a", "b", "c"])
    assert metrics["accuracy"] == pytest.approx(0.8)
    assert metrics["loss"] == pytest.approx(-0.8 * np.log(0.6) - 0.2 * np.log(0.2), rel=1e-6)
    found = labkit.load_run("mine")
    assert found.metrics("test")["accuracy"].tolist() == [pytest.approx(0.8)]
    predictions = found.predictions("test")
    assert np.array_equal(predictions.images, images) and predictions.classes == ["a", "b", "c"]
    assert [medium.kind for medium in MediaReader(found.path / "media" / INDEX).poll()] == [
        "image", "histogram", "text",
    ]  # fmt: skip


@pytest.mark.parametrize("split", ["validation", "test"])
def test_predictions_that_replace_others_of_a_step_replace_their_metrics(split):
    images, labels = np.zeros((4, 4, 4, 3), np.uint8), np.array([0, 1, 0, 1])
    with labkit.start_run("mine", total_steps=1) as run:
        run.log(1, loss=0.5)
        run.log(1, split=split, loss=9.0)
        for wrong in (0, 2):  # the replaced ones were better
            shares = np.where(np.arange(2) == (labels ^ (np.arange(4) < wrong))[:, None], 0.9, 0.1)
            metrics = run.predictions(split, images, labels, shares)
    found = labkit.load_run("mine")
    assert found.metrics(split)["accuracy"].tolist() == [metrics["accuracy"]] == [0.5]
    assert 1 - found.predictions(split).wrong.mean() == 0.5
    [summary] = Summaries(describe).of([RunDirectory(found.path)])
    assert summary.accuracy == 0.5 and not summary.other_tests
    assert summary.best_validation_accuracy == (0.5 if split == "validation" else None)


def test_predictions_without_a_finite_loss_are_read_by_every_parser_of_json():
    with labkit.start_run("mine") as run:
        run.predictions("test", np.zeros((2, 4, 4, 3), np.uint8), [0, 1], [[0.9, 0.1], [0.2, 0.8]])
    found = RunDirectory(run.path)
    arrays = dict(np.load(found.predictions_path / "test.npz"))
    row = {"loss": float("nan"), "accuracy": 1.0, "examples": 2, "checkpoint_step": 1}
    record_predictions(found, "test", arrays, row, ["a", "b"])
    text = (found.predictions_path / "test.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss"] is None
    assert np.isnan(labkit.load_run("mine").predictions("test").summary["loss"])


@pytest.mark.parametrize(
    "values",
    [
        [1.0, np.nextafter(1, 2)],
        [1e16] * 5,
        [5e-324, 0.0],
        [1e308, -1e308],
        [-3.0, 2.0, 2.0],
        [],
        [np.nan],
    ],
)
def test_a_histogram_counts_all_finite_values_however_near_or_far_they_are(values):
    with labkit.start_run("mine") as run:
        run.log_histogram(1, "values", values)
        with pytest.raises(InputError, match="'words' is of 'abc'; allowed: numbers"):
            run.log_histogram(1, "words", "abc")
    [medium] = MediaReader(labkit.load_run("mine").path / "media" / INDEX).poll()
    edges = np.array(medium.content["edges"])
    assert sum(medium.content["counts"]) == np.isfinite(values).sum()
    assert (np.diff(edges) > 0).all()
    inside = np.clip(np.array(values)[np.isfinite(values)], -8e307, 8e307)
    assert ((edges[0] <= inside) & (inside <= edges[-1])).all()


@pytest.mark.parametrize(
    ("ending", "state", "message"),
    [
        ("run.finish()", "finished", ""),
        ("pass", "interrupted", "after step 5 of 9"),
        ("raise ValueError('no such\\nthing')", "failed", "ValueError: no such"),
        ("raise KeyboardInterrupt", "interrupted", "Ctrl-C"),
        ("run.fail('the loss is NaN')", "failed", "the loss is NaN"),
    ],
)
def test_the_end_of_the_program_is_the_end_of_the_run(home, ending, state, message):
    code = f"import labkit\nrun = labkit.start_run('x', total_steps=9)\nrun.log(5, loss=1.0)\n{ending}"
    script(home, code).wait(60)
    status = RunDirectory(home / "runs" / "x").read_status()
    assert (status.state, status.step) == (state, 5)
    assert message in status.message


def test_a_kill_takes_no_row_back(home):
    code = (
        "import labkit, time\nrun = labkit.start_run('x', total_steps=1000)\n"
        "for step in range(1, 301): run.log(step, loss=1.0 / step)\n"
        "print('logged', flush=True)\ntime.sleep(60)"
    )
    started = script(home, code)
    assert started.stdout.readline() == b"logged\n"
    started.send_signal(signal.SIGKILL)
    started.wait(10)
    found = labkit.load_run("x")
    assert found.state == "lost"
    assert found.metrics()["step"].tolist() == list(range(1, 301))
    with labkit.start_run("x", resume_from=200) as run:  # and goes on
        with pytest.raises(InputError, match="step 200 comes after step 200 of train"):
            run.log(200, loss=0.0)
        run.log(201, loss=0.0)
    assert labkit.load_run("x").metrics()["step"].tolist() == list(range(1, 202))
    assert labkit.load_run("x").status.total_steps == 1000


def test_predictions_of_steps_that_no_longer_count_are_removed():
    images, shares = np.zeros((2, 8, 8, 1), np.uint8), [[0.9, 0.1]] * 2
    with labkit.start_run("y") as run:
        for step, split in ((1, "validation"), (5, "test")):
            run.log(step, loss=1.0)
            run.predictions(split, images, [0, 1], shares)
    with labkit.start_run("y", resume_from=3) as run:
        run.log(4, loss=1.0)
    found = labkit.load_run("y")
    assert found.tested().summary["step"] == 1  # of validation, which was before
    with pytest.raises(InputError, match="no predictions of the split 'test'; the program that recorded it"):
        found.predictions("test")
    with labkit.start_run("y", resume_from=4) as run:
        run.reached(5)
        run.predictions("test", images, [0, 1], shares)
        run.log(6, split="test", loss=0.5)
    with pytest.warns(UserWarning, match="is that of step 6; the program that recorded it can add them"):
        labkit.load_run("y").predictions("test")


def test_a_full_disk_ends_no_training(monkeypatch):
    with labkit.start_run("mine") as run:
        run.log(1, loss=1.0)
        write, full = os.write, [True]

        def refusing(descriptor, data):
            if full[0] and b'"split"' in bytes(data):
                write(descriptor, data[:10])
                raise OSError(28, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", refusing)
        with pytest.warns(UserWarning, match="No space left"):
            run.log(2, loss=1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            run.log(3, loss=1.0)
        full[0] = False
        run.log(4, loss=1.0)
    found = labkit.load_run("mine")
    assert found.metrics()["step"].tolist() == [1, 4]
    assert "2 records couldn't be written: No space left" in found.status.message


def test_a_full_disk_takes_media_and_predictions_and_no_training(monkeypatch):
    image = np.zeros((4, 4, 3), np.uint8)
    with labkit.start_run("mine") as run:
        run.log(1, loss=1.0)
        run.log_text(1, "note", "before")
        write, read, full = os.write, Path.write_bytes, [True]

        def refuse(*_):
            raise OSError(28, "No space left on device")

        def half(descriptor, data):
            return (write(descriptor, data[:9]), refuse()) if full[0] else write(descriptor, data)

        monkeypatch.setattr(os, "write", half)
        monkeypatch.setattr(Path, "write_bytes", lambda path, data: refuse() if full[0] else read(path, data))
        with pytest.warns(UserWarning, match="1 record couldn't be written: No space left"):
            run.log_image(1, "sample", image)
        run.log_text(1, "note", "lost")
        run.log_histogram(1, "weights", [1.0])
        assert run.predictions("validation", image[None], [0], [[0.5, 0.5]])["accuracy"] == 1
        full[0] = False
        run.log_text(2, "note", "after")
    found = MediaReader(run.path / "media" / INDEX)
    found.poll()
    assert [(one.step, one.content["text"]) for one in found.rows] == [(1, "before"), (2, "after")]
    assert found.damaged_lines == 0
    assert "5 records couldn't be written" in labkit.load_run("mine").status.message


def test_a_place_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json_atomic", refuse)
    with pytest.raises(InputError, match="mine can't be written: No space left on device; name"):
        labkit.start_run("mine")


def test_the_name_of_an_image_may_have_spaces_and_slashes_as_in_tensorboard():
    with labkit.start_run("mine") as run:
        for name, shade in (("val/first image", 0), ("val-first image", 255)):
            run.log_image(1, name, np.full((2, 2), shade, np.uint8))
    found = MediaReader(run.path / "media" / INDEX)
    found.poll()
    assert [one.name for one in found.rows] == ["val/first image", "val-first image"]
    assert len({read_image(RunDirectory(run.path), one) for one in found.rows}) == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.log(3, loss=1.0), ["step 3 comes after step 3 of train", "only grow"]),
        (lambda run: run.log(2, loss=1.0), ["step 2 comes after step 3"]),
        (lambda run: run.log(-1, loss=1.0), ["step is -1", "at least 0"]),
        (lambda run: run.log(4.5, loss=1.0), ["step is 4.5", "whole number"]),
        (lambda run: run.log(4, loss="low"), ["loss is 'low'", "a number"]),
        (lambda run: run.log(4, loss=np.ones(3)), ["loss is array", "a number"]),
        (lambda run: run.log(4, loss=True), ["loss is True"]),
        (lambda run: run.log(4, accuracy=87.5), ["accuracy is 87.5", "0 to 1", "divide percents by 100"]),
        (lambda run: run.log(4, accuracy=-0.5), ["accuracy is -0.5", "0 to 1"]),
        (lambda run: run.log(4, wall_time=1.0), ["'wall_time'", "rename"]),
        (lambda run: run.log(4, split="a\nb", loss=1.0), ["split is", "a name"]),
        (lambda run: run.log(4, split="../x", loss=1.0), ["split is '../x'"]),
        (lambda run: run.log(4, loss=10**400), ["loss is", "a number"]),
        (lambda run: run.reached("5"), ["step is '5'"]),
        (lambda run: run.predictions("../x", None, None, None), ["split is '../x'"]),
        (lambda run: run.log_image(4, "../name", np.zeros((2, 2))), ["'../name'", "letters"]),
        (lambda run: run.log(4, **{"": 1.0}), ["named ''", "up to 100 characters"]),
        (
            lambda run: run.predictions("test", np.zeros((2, 4, 4, 3)), [0, 1], [[1, 0]] * 2),
            ["float64", "uint8"],
        ),
        (
            lambda run: run.predictions("test", np.zeros((2, 4, 4, 3), np.uint8), [0, 5], [[1, 0]] * 2),
            ["from 0 to 5", "0 to 1"],
        ),
        (
            lambda run: run.predictions("test", np.zeros((2, 4, 4, 3), np.uint8), [0, 1], [[3, 1]] * 2),
            ["sum 1", "softmax"],
        ),
        (
            lambda run: run.predictions("test", np.zeros((1, 4, 4, 3), np.uint8), [0], [["high", "low"]]),
            ["probabilities aren't arrays", "'high'"],
        ),
        (
            lambda run: run.predictions(
                "test", np.zeros((1, 4, 4, 3), np.uint8), [0], [[0, 1]], classes="ab"
            ),
            ["classes is 'ab'", "a list of 2 names"],
        ),
        (
            lambda run: run.predictions(
                "test", np.zeros((1, 4, 4, 3), np.uint8), [0], [[0, 1]], classes=["cat", "cat"]
            ),
            ["['cat', 'cat']", "2 different names"],
        ),
    ],
)
def test_bad_values_are_one_line_and_leave_no_row(call, words):
    with labkit.start_run("mine") as run:
        run.log(3, loss=1.0)
        with pytest.raises(InputError) as refusal:
            call(run)
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)
    assert labkit.load_run("mine").metrics()["step"].tolist() == [3]


def test_a_notebook_shows_recorded_predictions_and_says_how_to_add_them():
    with labkit.start_run("mine") as run:
        images = np.zeros((2, 4, 4, 1), np.uint8)
        run.predictions("val", images, [0, 1], [[0.9, 0.1], [0.8, 0.2]], classes=["a", "b"])
    with labkit.start_run("none") as run:
        run.log(1, loss=1.0)
    found = labkit.load_run("mine")
    assert found.tested().wrong.tolist() == [False, True]
    assert found.mistakes().detail(1).axes[0].get_xlabel() == "predicted: a"
    with pytest.raises(InputError, match="neither its network nor its data"):
        _ = found.mistakes().network
    for call in (labkit.load_run("none").tested, labkit.load_run("none").predictions):
        with pytest.raises(InputError, match="no predictions of the split 'test'; the program that recorded"):
            call()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "a/b"}, ["'a/b'", "job_dir takes a path"]),
        ({"name": ""}, ["''", "characters"]),
        ({"name": "x", "total_steps": -1}, ["total_steps is -1"]),
        ({"name": "there"}, ["holds a run", "overwrite", "resume_from"]),
        ({"name": "new", "resume_from": 3}, ["no run to go on with"]),
        ({"name": "trained", "resume_from": 3}, ["trained by labkit", "labkit resume"]),
        ({"name": "other"}, ["neither empty nor a run"]),
        ({"name": "x", "config": {1: 2}}, ["config is {1: 2}", "names"]),
        ({"name": "x", "config": [1]}, ["config is [1]", "names"]),
        ({"name": "x", "config": {"a": {(1, 2): 3}}}, ["config is {'a'", "JSON can't hold it: keys must"]),
        ({"name": "x", "config": ENDLESS}, ["JSON can't hold it: Circular"]),
        ({"job_dir": "gs://bucket/x"}, ["job_dir is 'gs://bucket/x'", "a path on this machine"]),
        ({"job_dir": ""}, ["job_dir is ''", "a path on this machine"]),
        ({"name": "there", "resume_from": 3}, ["resume_from is 3", "up to 0"]),
        ({"name": "there", "resume_from": 0, "config": {"a": 1}}, ["keeps its own"]),
        ({"name": "there", "resume_from": 0, "overwrite": True}, ["overwrite is True", "one of the two"]),
    ],
)
def test_a_run_that_cannot_be_started_writes_nothing(home, given, words):
    labkit.start_run("there").finish()
    for name, file in (("other", "letter.txt"), ("trained", "config.json")):
        (home / "runs" / name).mkdir()
        (home / "runs" / name / file).write_text("{}")
    before = sorted(home.rglob("*"))
    with pytest.raises(InputError) as refusal:
        labkit.start_run(**given)
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert sorted(home.rglob("*")) == before


def test_a_run_has_one_writer(home):
    other = script(
        home, "import labkit, time\nlabkit.start_run('mine')\nprint('there', flush=True)\ntime.sleep(60)"
    )
    try:
        assert other.stdout.readline() == b"there\n"
        with pytest.raises(InputError, match="being written by another process"):
            labkit.start_run("mine", overwrite=True)
    finally:
        other.kill()
        other.wait()


def test_a_process_that_was_forked_off_writes_nothing():
    with labkit.start_run("mine") as run:
        run.log(1, loss=1.0)
        if not (child := os.fork()):
            with suppress(InputError):
                run.log(2, loss=1.0)
            run.finish()
            os._exit(0)
        os.waitpid(child, 0)
        run.log(3, loss=1.0)
        assert labkit.load_run("mine").state == "running"
    assert labkit.load_run("mine").metrics()["step"].tolist() == [1, 3]


def test_a_cell_that_is_run_again_takes_its_run_over():
    first = labkit.start_run("mine")
    first.log(1, loss=1.0)
    with pytest.raises(InputError, match="holds a run"):
        labkit.start_run("mine")
    first.log(2, loss=1.0)  # is still the writer
    with labkit.start_run("mine", overwrite=True) as run:
        run.log(1, loss=3.0)
        with pytest.raises(InputError, match="has ended"):
            first.log(3, loss=1.0)
        assert not RunLock(RunDirectory(run.path)).acquire()
    assert labkit.load_run("mine").metrics()["loss"].tolist() == [3.0]


def test_who_needs_the_network_says_what_is_missing():
    labkit.start_run("mine").finish()
    with pytest.raises(InputError, match="recorded with labkit.start_run; labkit has its rows"):
        recorded_config(RunDirectory(labkit.load_run("mine").path))
    with pytest.raises(InputError, match="neither its network nor its data"):
        labkit.evaluate("mine")


def test_the_status_follows_without_a_call(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STATUSES", 0.02)
    with labkit.start_run("mine") as run:
        run.log(1, loss=1.0)
        end = time.monotonic() + 30
        while labkit.load_run("mine").status.metrics.get("last_step") != 1:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_runs_without_settings_are_not_taken_for_repetitions():
    both = {"width": 7}
    given = {"a": {}, "b": {}, "c": {**both, "seed": 0}, "d": {**both, "seed": 1}}
    given |= {"e": {"seed": 0}, "f": {"seed": 1}}
    for name, settings in given.items():
        with labkit.start_run(name, settings) as run:
            run.log(1, loss=1.0)
    results = read_results({name: RunDirectory(labkit.load_run(name).path) for name in given})
    groups = [[one.label for one in group.results] for group in grouped(results)]
    assert groups == [["a"], ["b"], ["c", "d"], ["e", "f"]]


def test_the_name_of_a_configuration_leaves_out_what_its_program_never_records():
    given = {"a": {"model": "linear", "framework": "torch"}, "b": {"model": "dense"}, "c": {}}
    for name, settings in given.items():
        for seed in (0, 1):
            labkit.start_run(f"{name}-{seed}", {**settings, "seed": seed}).finish()
    paths = {
        f"{name}-{seed}": RunDirectory(labkit.load_run(f"{name}-{seed}").path)
        for name in given
        for seed in (0, 1)
    }
    results = read_results(paths)
    names = [group.name for group in grouped(results)]
    assert names == ["linear, framework torch", "dense", "–"]
    results[2:4] = [replace(one, settings=one.settings | {"recorded_by": "other"}) for one in results[2:4]]
    assert [group.name for group in grouped(results)] == names
    unknown = replace(results[0], settings={}, label="imported")
    together = grouped([*results, unknown], settings=differing([*results, unknown]))
    assert [group.name for group in together] == [*names, "imported"]
    results[2:4] = [replace(one, settings=one.settings | {"model": None}) for one in results[2:4]]
    apart = ["–, recorded_by other", "recorded_by labkit.start_run"]
    assert [group.name for group in grouped(results)][1:] == apart
