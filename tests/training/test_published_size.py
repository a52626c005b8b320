"""Networks of published size train in every precision and layout, with frozen stages too."""

import json
from pathlib import Path

import numpy as np
import pytest

from labkit.distributed.cpu import bfloat16_instructions
from tests.training.small import train


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
