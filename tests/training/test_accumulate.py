"""Steps of several passes equal steps with the whole batch."""

import numpy as np
import pytest

from labkit.config import Config
from labkit.errors import InputError
from labkit.training.checks import check_layout
from tests.properties.harness import checkpoint_values, labkit, losses, train

FIELDS = {
    # Without batch normalization, whose statistics are those of a pass; dropout and mixup are the batch's.
    "model": "tutorial_cnn",
    "num_layers": None,
    "batch_norm_decay": None,
    "dropout_rate": 0.3,
    "mixup_alpha": 0.2,
    "train_steps": 2,
    "learning_rate": 0.05,
    "precision": "float64",
    "validate_every_steps": 0,
    "evaluate_test": False,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Steps with the whole batch."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(run, train_batch_size=12, **FIELDS)
    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("replicas", [0, pytest.param(2, marks=pytest.mark.long)])
def test_passes_equal_the_batch_as_many_times_as_large(whole, tmp_path, replicas):
    devices = {"num_gpus": replicas, "simulate_missing_gpus": True}
    train(tmp_path / "run", train_batch_size=4, accumulate_steps=3, **FIELDS | devices)
    assert np.abs(np.subtract(losses(whole), losses(tmp_path / "run"))).max() < 1e-10
    found, expected = (checkpoint_values(run, 2) for run in (tmp_path / "run", whole))
    assert all(np.allclose(found[key], value, atol=1e-9) for key, value in expected.items())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_batch_normalization_has_the_statistics_of_a_pass_and_verifies(tmp_path):
    fields = {"train_steps": 4, "train_batch_size": 16, "accumulate_steps": 2, "validate_every_steps": 0}
    train(tmp_path / "run", model="resnet", num_layers=8, checkpoint_every_steps=2, **fields)
    assert labkit("verify", str(tmp_path / "run")) == 0
    assert labkit("replay", str(tmp_path / "run"), "--step", "3", "--output", str(tmp_path / "made")) == 0


def test_what_needs_the_whole_batch_at_once_is_refused():
    for values in ({"sync_batch_norm": True}, {"inspect_every_steps": 5}):
        config = Config.from_flat({"accumulate_steps": 2, **values})
        with pytest.raises(InputError, match="--accumulate-steps is 2 with --"):
            check_layout(config, num_local_replicas=2)
