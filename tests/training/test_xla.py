"""XLA makes the same step of the same formulas, and is refused where it can't."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.config import Config, ModelConfig
from labkit.distributed.task import ClusterTask
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.optim.optimizers import SGD
from labkit.training.checks import check_layout
from labkit.training.plan import plan_run
from tests.steps import compiled_step

BATCH, STEPS = 8, 3


def trained(**options) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the figures of some steps, and every weight and moving average after them."""
    model = build_model(
        ModelConfig(num_layers=8, precision="float64"), num_classes=3, image_shape=(8, 8, 3), seed=1
    )
    step = compiled_step(
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
        found = step(images, tf.range(BATCH) % 3, tf.constant(0.1), tf.constant(0.0))
        figures.append(found.numpy())
    return figures, [weight.numpy() for weight in model.weights]


@pytest.mark.long
def test_compiled_by_xla_a_step_does_the_same():
    figures, weights = trained()
    compiled_figures, compiled_weights = trained(xla=True)
    np.testing.assert_allclose(compiled_figures, figures, rtol=1e-9)
    for compiled, weight in zip(compiled_weights, weights, strict=True):
        np.testing.assert_allclose(compiled, weight, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("flags", "layout", "words"),
    [
        ({}, {"num_local_replicas": 2}, "2 replicas in one process"),
        ({}, {"num_local_replicas": 1, "asynchronous": True}, "parameter servers"),
        ({"sync_batch_norm": True}, {"num_local_replicas": 1, "num_workers": 2}, "batch normalization over"),
    ],
)
def test_it_is_refused_where_it_cannot_compile(flags, layout, words):
    with pytest.raises(InputError, match=f"--xla needs one replica per process; here: .*{words}"):
        check_layout(Config.from_flat({"xla": True, **flags}), **layout)
    check_layout(Config.from_flat(flags), **layout)
    check_layout(Config.from_flat({"xla": True, **flags}), num_local_replicas=1)

    servers = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    for job in servers:  # each task of a cluster, before any work
        with pytest.raises(InputError, match="--xla needs one replica per process"):
            plan_run(Config.from_flat({"xla": True}), task=ClusterTask(servers, job, 0))
