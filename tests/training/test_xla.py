"""XLA makes the same step of the same formulas, and is refused where it can't."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config, ModelConfig
from labkit.distributed.devices import DevicePlan, check_xla
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.optim.sgd import SGD
from labkit.training.step import make_train_step

BATCH, STEPS = 8, 3


def trained(**options) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the figures of some steps, and every weight and moving average after them."""
    model = build_model(
        ModelConfig(num_layers=8, precision="float64"), num_classes=3, image_shape=(8, 8, 3), seed=1
    )
    step = make_train_step(
        tf.distribute.get_strategy(),
        model,
        SGD(model, Config().optimizer),
        tf.Variable(0, dtype=tf.int64),
        global_batch_size=BATCH,
        label_smoothing=0.1,
        **options,
    )
    random, figures = np.random.default_rng(0), []
    for _ in range(STEPS):
        images = tf.constant(random.normal(size=(BATCH, 8, 8, 3)), tf.float32)
        found, _ = step(images, tf.range(BATCH) % 3, tf.constant(0.1), tf.constant(0.0))
        figures.append(found.numpy())
    return figures, [weight.numpy() for weight in model.weights]


def test_compiled_by_xla_a_step_does_the_same():
    figures, weights = trained()
    compiled_figures, compiled_weights = trained(xla=True)
    np.testing.assert_allclose(compiled_figures, figures, rtol=1e-9)
    for compiled, weight in zip(compiled_weights, weights, strict=True):
        np.testing.assert_allclose(compiled, weight, rtol=1e-7, atol=1e-12)


ALONE = DevicePlan(devices=("/CPU:0",), kind="CPU", simulated=False)


@pytest.mark.parametrize(
    ("flags", "plan", "words"),
    [
        ({}, replace(ALONE, devices=("/GPU:0", "/GPU:1")), "2 replicas in this process"),
        ({}, replace(ALONE, asynchronous_workers=2), "parameter servers"),
        ({"sync_batch_norm": True}, replace(ALONE, num_workers=2), "batch normalization over several"),
    ],
)
def test_it_is_refused_where_it_cannot_compile(flags, plan, words):
    with pytest.raises(InputError, match=f"--xla is for one replica a process; here: .*{words}"):
        check_xla(Config.from_flat({"xla": True, **flags}), plan)
    check_xla(Config.from_flat(flags), plan)
    check_xla(Config.from_flat({"xla": True, **flags}), ALONE)
