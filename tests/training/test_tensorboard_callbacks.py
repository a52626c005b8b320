"""Graph and images for TensorBoard, read back from the event files."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.callbacks.callback import Callback
from labkit.config import Config
from labkit.training.plan import plan_training
from labkit.training.train import train
from tests.training.small import FIELDS

STEPS = 4


@pytest.fixture(scope="module")
def trained(data_dir, tmp_path_factory):
    """Train a few steps of a small network. Returns the network and the events that were written."""
    kept = []

    class Keeps(Callback):
        def on_end(self, training, state):
            kept.append(training.network)

    job_dir = tmp_path_factory.mktemp("tensorboard") / "run"
    values = FIELDS | {"job_dir": str(job_dir), "data_dir": str(data_dir), "train_steps": STEPS}
    asked_for = {
        "write_graph": True,
        "write_images": True,
        "profile_steps": "2:3",
    }
    plan = plan_training(Config.from_flat(values | asked_for), callbacks=[Keeps()])
    assert train(plan).state == "finished"
    [path] = (job_dir / "events" / "extras").glob("events.out.*")
    return kept[0], list(tf.compat.v1.train.summary_iterator(str(path))), job_dir


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


def test_the_graph_is_that_of_the_training_step_which_is_traced_once(trained):
    network, events, _ = trained
    # Gradients of the kernels, the update of the weights, and the counter of steps.
    assert {"Conv2DBackpropFilter", "ResourceApplyMomentum", "AssignAddVariableOp"} <= operations(events)
    assert network.train_step.experimental_get_tracing_count() == 1


def test_the_images_are_those_of_the_first_batch(trained):
    network, events, _ = trained
    [(step, tag, content)] = summaries(events, "images")
    assert (step, tag) == (0, "train/images")
    images = network.batch(0)[0].numpy()
    width, height, *pictures = content
    assert (int(height), int(width)) == images.shape[1:3] and len(pictures) == min(16, len(images))
    low, high = np.min(images), np.max(images)
    for picture, image in zip(pictures, images, strict=False):
        shown = tf.io.decode_png(picture).numpy() / 255
        np.testing.assert_allclose(shown, (image - low) / (high - low), atol=1 / 255)


def test_the_profile_holds_the_steps_that_were_asked_for(trained):
    [trace] = (trained[2] / "events" / "plugins" / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size > 1000
