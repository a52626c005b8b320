"""Muon, smaller images first and cutout: a stop changes nothing, nor do two replicas."""

import shutil

import numpy as np
import pytest

from tests.properties.harness import assert_bit_equal, checkpoint_values, losses, train

STEPS, SAVED = 12, 4  # images of 16 pixels before step 3, of 24 before step 6
FIELDS = {
    "model": "fast",
    "num_layers": None,
    "width_factor": 0.125,
    "train_steps": STEPS,
    "optimizer": "muon",
    "learning_rate": 0.5,
    "norm_bias_learning_rate_factor": 4.0,
    "progressive_resizing": "16:0.25,24:0.5",
    "cutout_size": 6,
    "flip": "alternating",
    "crop_padding": 2,
    "crop_padding_mode": "reflect",
    "label_smoothing": 0.2,
    "checkpoint_every_steps": 2,
    "keep_checkpoints": STEPS,
    "validate_every_steps": 0,
    "evaluate_test": False,
    # Shows what is rounding and what is not, in the comparison of one and two replicas.
    "precision": "float64",
    "sync_batch_norm": True,
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop."""
    run = tmp_path_factory.mktemp("fast") / "whole"
    train(run, **FIELDS)
    return run


def cut_off(run, copy, step: int):
    """Copy ``run`` as if it had been killed right behind the checkpoint of ``step``."""
    shutil.copytree(run, copy)
    for place in (copy / "checkpoints").glob("step-*"):
        if int(place.name.removeprefix("step-")) > step:
            shutil.rmtree(place)
    (copy / "status.json").unlink()


def test_going_on_among_smaller_images_equals_no_interruption(whole):
    stopped = whole.with_name("stopped")
    cut_off(whole, stopped, SAVED)
    train(stopped, **FIELDS)
    assert_bit_equal(checkpoint_values(whole, STEPS), checkpoint_values(stopped, STEPS))
    assert losses(whole) == losses(stopped)


def test_kernels_keep_their_length(whole):
    values = checkpoint_values(whole, STEPS - 2)
    kernels = [value for name, value in values.items() if name.startswith("model/") and value.ndim == 4]
    trained = [kernel for kernel in kernels if kernel.shape[0] == 3]
    assert len(trained) == 6
    for kernel in trained:  # the length before the last update, which turns it
        assert np.sqrt((kernel**2).sum() / kernel.shape[-1]) == pytest.approx(1.0, abs=0.35)


@pytest.mark.thorough
def test_two_replicas_equal_one(whole):
    two = whole.with_name("two")
    replicas = {"num_gpus": 2, "simulate_missing_gpus": True, "variable_strategy": "GPU"}
    train(two, **FIELDS | replicas)
    apart = np.abs(np.subtract(losses(whole), losses(two)))
    assert 0 < apart.max() < 1e-9
