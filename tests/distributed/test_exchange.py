"""What replicas exchange."""

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.config import Config
from labkit.distributed.exchange import all_reduce_bytes
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.training.checks import check_together


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_replicas_sum_compressed_gradients_up_to_rounding():
    """In a process of its own: logical devices can't be made once TensorFlow has begun."""
    script = Path(__file__).with_name("compressed.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert ended.stdout.endswith("all held\n"), ended.stderr[-3000:]


def test_compressed_gradients_are_half_the_bytes_and_statistics_are_not():
    config = Config.from_flat({"num_layers": 8}).model
    model = build_model(config, num_classes=10, image_shape=(32, 32, 3), seed=0)
    gradients = 4 * sum(weight.value.shape.num_elements() for weight in model.trainable_weights)
    statistics = 4 * sum(weight.value.shape.num_elements() for weight in model.non_trainable_weights)
    assert all_reduce_bytes(model, frozenset(), 2) == gradients + statistics
    assert all_reduce_bytes(model, frozenset(), 2, "bfloat16") == gradients / 2 + statistics
    assert all_reduce_bytes(model, frozenset(), 4, "bfloat16") == 1.5 * (gradients / 2 + statistics)


def test_compression_is_refused_where_it_changes_nothing_or_too_much():
    config = Config.from_flat({"gradient_compression": "bfloat16"})
    check_together(config, num_workers=2, asynchronous=False)
    check_together(config, num_workers=1, asynchronous=True)
    with pytest.raises(InputError, match="one replica"):
        check_together(config, num_workers=1, asynchronous=False)
    with pytest.raises(InputError, match="float64"):
        Config.from_flat({"gradient_compression": "bfloat16", "precision": "float64"})
