"""The training step against PyTorch's, whose results ``tests/models/make_reference.py`` keeps; big nets."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config
from labkit.distributed.cpu import bfloat16_instructions
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from tests.models.keras_weights import load_weights, weights_by_place
from tests.models.reference_weights import batch, sampled
from tests.steps import compiled_step
from tests.training.small import train

REFERENCE = Path(__file__).parents[1] / "models" / "reference" / "training.npz"
RATE, BATCH = 0.05, 16
FIELDS = {
    "num_layers": 14,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 2e-3,
    "weight_decay_mode": "l2",
    "batch_norm_decay": 0.9,
}


def test_three_steps_move_losses_and_weights_as_pytorch_does():
    """Forward pass, gradients, Nesterov's momentum, decay, moving averages."""
    expected = np.load(REFERENCE)
    config = Config.from_flat(FIELDS)
    model = load_weights(build_model(config.model, num_classes=10, image_shape=(32, 32, 3)))
    step = compiled_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, config.optimizer),
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        label_smoothing=0.0,
    )
    before = weights_by_place(model)
    losses = []
    for number in range(3):
        images, labels = batch(number, BATCH)
        metrics = step(tf.constant(images), tf.constant(labels), tf.constant(RATE), tf.constant(0.0))
        losses.append(float(metrics[0]))
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-3)
    after = weights_by_place(model)
    assert {*after, "losses"} == set(expected)
    for place, values in after.items():
        moved = expected[place]
        assert np.abs(moved).max() > 0
        assert np.abs(sampled(values - before[place]) - moved).max() < 0.02 * np.abs(moved).max(), place


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "imagenet_resnet", "num_layers": 18, "freeze": "stem,stage1,stage2"},
        {"model": "imagenet_resnet", "num_layers": 50, "precision": "mixed_bfloat16"},
        {"model": "imagenet_se_resnet", "data_format": "channels_first"},
        {"model": "imagenet_vgg", "num_layers": 11, "precision": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_two_steps_of_training(fields, data_dir, tmp_path: Path):
    if not bfloat16_instructions():  # labkit refuses mixed_bfloat16 on such a CPU
        fields = fields | {"precision": "float32"}
    steps = {"train_steps": 2, "train_batch_size": 4, "checkpoint_every_steps": 2, "validate_every_steps": 0}
    assert train(tmp_path / "run", data_dir, **steps, **fields) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["split"] == "train"]
    assert len(losses) == 2 and np.isfinite(losses).all()
