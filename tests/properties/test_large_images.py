"""Images over 64 pixels, stored as JPEGs: what holds for small images holds for them."""

import numpy as np
import pytest

import labkit
from labkit.data.manifest import load_manifest
from labkit.data.shards import load_split
from tests.jpegs import prepare_jpegs
from tests.properties.harness import assert_same_run, losses, metrics, train, train_arguments
from tests.properties.harness import labkit as command

SIDE, STEPS = 72, 6
FIELDS = {
    "train_batch_size": 8,
    "eval_batch_size": 16,
    "validate_every_steps": STEPS,
    "train_steps": STEPS,
    "learning_rate": 0.001,  # gentle, so that rounding does not grow
    "learning_rate_schedule": "constant",
    "sync_batch_norm": True,
}
# Ends the first process after step 3, as an operator would.
INTERRUPTING = """
import os, signal, labkit

class Interrupting(labkit.Callback):
    def after_step(self, training, row):
        if row["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

callbacks = [Interrupting()]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The folder of a data set of 180 train, 20 validation and 40 test images."""
    return prepare_jpegs(tmp_path_factory.mktemp("large"), SIDE).directory.parent


@pytest.fixture(scope="module")
def whole(data_dir, tmp_path_factory):
    """A streaming run that nothing interrupted."""
    job_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(job_dir, data_dir=data_dir, input_path="streaming", **FIELDS)
    return job_dir


@pytest.mark.long
def test_an_interrupted_run_ends_with_the_same_weights(data_dir, whole, tmp_path):
    job_dir, file = tmp_path / "parts", tmp_path / "interrupting.py"
    file.write_text(INTERRUPTING)
    fields = {"data_dir": data_dir, "input_path": "streaming", **FIELDS}
    assert command(*train_arguments(job_dir, callbacks=file, **fields)) == 143
    assert len(losses(job_dir)) == 3
    train(job_dir, **fields)
    assert_same_run(whole, job_dir, STEPS)


@pytest.mark.long  # tests/properties/test_replicas.py has the same of small images
def test_two_replicas_give_the_curve_of_one(data_dir, whole, tmp_path):
    job_dir = tmp_path / "two"
    several = {"num_gpus": 2, "simulate_missing_gpus": True, "input_path": "streaming"}
    train(job_dir, data_dir=data_dir, **FIELDS | several)
    np.testing.assert_allclose(losses(job_dir), losses(whole), atol=1e-4)
    for split, count in (("validation", 20), ("test", 40)):
        assert [row["examples"] for row in metrics(job_dir).split(split)] == [count]


@pytest.mark.long
def test_replay_batch_predictions_and_saliency(data_dir, whole):
    run, manifest = labkit.load_run(whole), load_manifest(data_dir, "shapes")
    assert run.config.data.random_resized_crop == 0.25, "recorded as resolved"
    replayed = run.replay(4)
    assert replayed.loss_is_equal
    np.testing.assert_array_equal(run.batch(4).images, replayed.batch.images)
    predictions, images = run.predictions("test"), load_split(manifest, "test")[0]
    np.testing.assert_array_equal(predictions.images[3], images[predictions.index[3]])

    from labkit.analysis.network import load_network, occlusion_map

    asked = []

    def predict(pictures):
        asked.append(len(pictures))
        return network.probabilities(pictures)

    network = load_network(run)
    assert occlusion_map(predict, images[0], 0).shape == (SIDE, SIDE)
    assert asked[0] < 320, "as many as for small images"
