"""What callbacks remember over a resume, what they ask of the network, and what they keep with the run."""

import io
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import labkit
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.media import INDEX, MediaReader, media_that_count, read_image
from labkit.run_directory.rows import ResumePoint

FLAGS = {"preset": "smoke", "checkpoint_every_steps": 5, "validate_every_steps": 0, "evaluate_test": False}


class Counts(labkit.Callback):
    """Counts the rows that it has seen; stops once behind a checkpoint."""

    def __init__(self, fails_at=0):
        self.seen, self.fails_at, self.restored = 0, fails_at, None

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = self.restored = state["seen"]

    def after_step(self, training, row):
        if row["step"] == self.fails_at:
            raise RuntimeError("here")
        self.seen += 1


def test_what_a_callback_remembers_comes_back_from_the_checkpoint(tmp_path):
    first = [Counts(), Counts(fails_at=14)]
    failed = labkit.train(callbacks=first, job_dir=tmp_path / "run", **FLAGS)
    assert failed.state == "failed" and [one.restored for one in first] == [None, None]
    second = [Counts(), Counts()]
    again = labkit.train(callbacks=second, job_dir=tmp_path / "run", **FLAGS)
    assert again.state == "finished"
    # The failure came in step 14, after the first callback had seen it; the checkpoint is of step 14.
    assert [one.restored for one in second] == [14, 13]
    assert [one.seen for one in second] == [20, 19]


@pytest.mark.parametrize(
    "state",
    [
        np.zeros(3),
        *(pytest.param(one, marks=pytest.mark.long) for one in ({1: 2}, {"a": (1, 2)}, float("nan"))),
    ],
)
def test_a_state_that_would_not_come_back_as_it_is_ends_the_run_at_its_start(state, tmp_path):
    class Keeps(labkit.Callback):
        def state(self):
            return state

    run = labkit.train(callbacks=[Keeps()], job_dir=tmp_path / "run", **FLAGS)
    assert run.state == "failed" and run.step == 0 and "its state is" in run.status.message


@pytest.fixture(scope="module")
def looked(tmp_path_factory, shapes):
    """What a callback saw at step 10 of a run, and the run, in which it kept something of each kind."""
    found = {}

    class Looks(labkit.Callback):
        def after_step(self, training, row):
            if row["step"] % 10:
                return
            images, labels = found["batch"] = training.batch()
            found["outputs"] = training.outputs(["stage1_*", "logits"], images[:4])
            found["logits"] = training.logits(images[:4])
            found["gradients"] = training.gradients(images, labels)
            found["weights"] = training.weights()
            with pytest.raises(InputError, match="no layer is called"):
                training.outputs("nowhere", images)
            training.log_image("first", images[0])
            training.log_image("grey", images[0, :, :, 0] / 255)
            figure = Figure(figsize=(2, 1))
            figure.add_subplot().plot([1, 2])
            training.log_figure("figure", figure)
            training.log_histogram("values", [1.0, 2.0, 2.0, np.nan])
            training.log_text("text", "<b>é</b>")
            bad = [
                (training.log_image, "first", images),
                (training.log_image, "../first", images[0]),
                (training.log_image, "first", np.full((2, 2), np.nan)),
                (training.log_image, "first", np.full((2, 2), 2.0)),
                (training.log_figure, "figure", 3),
                (training.log_text, "text", "x" * 70_000),
            ]
            for keep, name, value in bad:
                with pytest.raises(InputError, match="allowed"):
                    keep(name, value)

    path = tmp_path_factory.mktemp("looked") / "run"
    run = labkit.train(callbacks=[Looks()], job_dir=path, **FLAGS)
    assert run.state == "finished", run.status.message
    return found, RunDirectory(path)


@pytest.mark.long
def test_outputs_and_gradients_are_those_of_the_network(looked):
    found, _ = looked
    images, labels = found["batch"]
    assert images.dtype == np.uint8 and len(images) == len(labels)
    names = list(found["outputs"])
    assert names[-1] == "logits" and all(name.startswith("stage1_") for name in names[:-1])
    np.testing.assert_allclose(found["outputs"]["logits"], found["logits"], rtol=1e-5, atol=1e-6)
    assert found["gradients"].keys() < found["weights"].keys()
    assert all(value.shape == found["weights"][path].shape for path, value in found["gradients"].items())
    # The gradient of the offsets of the logits is the mean of the probabilities less the labels.
    assert (
        abs(found["gradients"]["logits/bias"].sum()) < 1e-6 < np.abs(found["gradients"]["logits/bias"]).max()
    )


def test_what_was_kept_is_read_again_and_shown_by_tensorboard(looked):
    found, run = looked
    reader = MediaReader(run.media_path / INDEX)
    reader.poll()
    media = media_that_count(reader.rows, ())
    assert list(media) == ["figure", "first", "grey", "text", "values"]
    assert all([one.step for one in kept] == [10, 20] for kept in media.values())
    pixels = np.asarray(Image.open(io.BytesIO(read_image(run, media["first"][-1]))))
    np.testing.assert_array_equal(pixels, found["batch"][0][0])
    assert media["text"][0].content["text"] == "<b>é</b>"
    histogram = media["values"][0].content
    assert sum(histogram["counts"]) == 3 and histogram["not_finite_values"] == 1
    resumed = media_that_count(reader.rows, [ResumePoint(15, media["first"][-1].wall_time + 1)])
    assert [one.step for one in resumed["first"]] == [10]
    events = b"".join(path.read_bytes() for path in run.events_path.rglob("*tfevents*"))
    assert all(f"media/{name}".encode() in events for name in media)


def test_damaged_rows_and_files_of_media_are_left_out(looked, tmp_path):
    _, run = looked
    lines = (run.media_path / INDEX).read_text().splitlines()
    row = json.loads(lines[0])
    bad = [row | {"file": "../../config.json"}, row | {"step": -1}, row | {"kind": "page"}, row | {"name": 3}]
    path = tmp_path / INDEX
    path.write_text("\n".join([lines[0], "{", *map(json.dumps, bad)]) + "\n")
    reader = MediaReader(path)
    reader.poll()
    assert len(reader.rows) == 1 and reader.damaged_lines == 5
    copy = RunDirectory(tmp_path)
    copy.media_path.mkdir()
    for content in (None, b"no image"):
        if content:
            (copy.media_path / row["file"]).write_bytes(content)
        with pytest.raises(InputError, match=row["file"]):
            read_image(copy, reader.rows[0])


@pytest.mark.parametrize("changed", [{}, {"freeze": "stage1", "label_smoothing": 0.1}], ids=["all", "frozen"])
def test_the_gradients_of_a_step_are_what_it_applies(tmp_path, shapes, changed):
    found = {}

    class Predicts(labkit.Callback):
        def before_step(self, training, step):
            if step == 3:
                images, labels = training.batch(step)
                found["gradients"] = training.gradients(images, labels, step=step)
                found["dropped"] = training.outputs("*dropout*", images, step=step)
                found["before"] = training.weights()
                with pytest.raises(InputError, match="step is -1"):
                    training.gradients(images, labels, step=-1)

        def after_step(self, training, row):
            if row["step"] == 3:
                found["after"], found["rate"] = training.weights(), row["learning_rate"]

    flags = {
        "dropout_rate": 0.5,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "model": "vgg11",
        "learning_rate": 0.01,
    }
    values = FLAGS | flags | {"train_steps": 3, "train_batch_size": 16} | changed
    run = labkit.train(callbacks=[Predicts()], job_dir=tmp_path / "run", **values)
    assert run.state == "finished", run.status.message
    assert all((values == 0).mean() > 0.4 for values in found["dropped"].values()) and found["dropped"]
    moved = 0
    for path, gradient in found["gradients"].items():
        change = found["before"][path] - found["after"][path]
        if change.any():  # not frozen
            moved += 1
            np.testing.assert_allclose(change, found["rate"] * gradient, rtol=1e-3, atol=1e-6)
    assert moved and (moved == len(found["gradients"])) == (not changed)
