"""Histograms, graph and images for TensorBoard, read back from the event files."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.run_directory import RunDirectory
from labkit.training.extras import Extras
from labkit.training.plan import RunPlan
from labkit.training.session import make_session
from labkit.training.step import SynchronousEngine

BATCH, CLASSES, SHAPE, STEPS = 4, 3, (16, 16, 3), 4
MANIFEST = SimpleNamespace(num_classes=CLASSES, image_shape=SHAPE, count=lambda split: 100)


def batches():
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        images = random.normal(size=(BATCH, *SHAPE)).astype(np.float32)
        yield tf.constant(images), tf.constant(random.integers(CLASSES, size=BATCH), tf.int32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make a few real steps of a small network. Returns the session and the events that were written."""
    asked_for = {"write_graph": True, "write_images": True, "histograms_every_steps": 2}
    config = Config.from_flat({"num_layers": 8, "train_batch_size": BATCH, "train_steps": STEPS, **asked_for})
    session = make_session(RunPlan(config, MANIFEST, None, "new", "shapes", "").on_one_device(num_gpus=0))
    run = RunDirectory(tmp_path_factory.mktemp("extras"))
    extras = Extras(config, run, session)
    engine = SynchronousEngine(
        session,
        batches(),
        step=0,
        stopping=lambda: False,
        name="worker:0",
        on_first_batch=extras.first_batch,
    )
    for step in range(1, STEPS + 1):
        engine.next_step()
        extras.after_step(step)
    [path] = run.events_path.rglob("events.out.*")
    return session, list(tf.compat.v1.train.summary_iterator(str(path)))


def summaries(events, plugin: str) -> list[tuple[int, str, np.ndarray]]:
    """Return step, tag and content of the summaries of one of TensorBoard's plugins."""
    return [
        (event.step, value.tag, tf.make_ndarray(value.tensor))
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


def operations(events) -> set[str]:
    """Return the kinds of operations of the one graph among ``events``."""
    [content] = [event.graph_def for event in events if event.graph_def]
    graph = tf.compat.v1.GraphDef.FromString(content)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def test_nothing_is_written_unless_it_is_asked_for(tmp_path):
    extras = Extras(Config(), RunDirectory(tmp_path), session=None)
    extras.after_step(1)
    assert not extras.wants_batch
    assert not list(tmp_path.iterdir())


def test_the_graph_is_that_of_the_training_step_which_is_traced_once(trained):
    session, events = trained
    # Gradients of the kernels, the update of the weights, and the counter of steps.
    assert {"Conv2DBackpropFilter", "AssignSubVariableOp", "AssignAddVariableOp"} <= operations(events)
    assert session.train_step.experimental_get_tracing_count() == 1
    assert int(session.step) == STEPS


def test_the_images_are_those_of_the_first_batch(trained):
    _, events = trained
    [(step, tag, content)] = summaries(events, "images")
    assert (step, tag) == (0, "train/images")
    width, height, *pictures = content
    assert (int(width), int(height), len(pictures)) == (SHAPE[1], SHAPE[0], BATCH)
    images, _ = next(batches())
    low, high = np.min(images), np.max(images)
    for picture, image in zip(pictures, images.numpy(), strict=True):
        shown = tf.io.decode_png(picture).numpy() / 255
        np.testing.assert_allclose(shown, (image - low) / (high - low), atol=1 / 255)


def test_every_weight_has_a_histogram_as_often_as_asked(trained):
    session, events = trained
    found = summaries(events, "histograms")
    paths = [weight.path for weight in session.model.weights]
    assert sorted((step, tag) for step, tag, _ in found) == sorted((s, p) for s in (2, 4) for p in paths)
    by_tag = {tag: content for step, tag, content in found if step == STEPS}
    for weight in session.model.weights:
        left, right, count = by_tag[weight.path].T  # [buckets, 3]
        values = np.asarray(weight.value)
        assert count.sum() == values.size
        assert left.min() == pytest.approx(values.min(), abs=1e-6)
        assert right.max() == pytest.approx(values.max(), abs=1e-6)
