"""The weights of a checkpoint are loaded from any layout and precision."""

import numpy as np
import pytest
import tensorflow as tf

from labkit.analysis.network import trained_model
from labkit.config import Config
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.training.checkpoints import CheckpointState, CheckpointStore

CONFIG = Config.from_flat({"model": "fast", "width_factor": 0.125, "train_steps": 10})


def saved(folder, shapes, config=CONFIG, data_format="channels_last", seed=1):
    """Save a network at step 3 and return the store and the network's weights."""
    model = build_model(
        config.model,
        num_classes=shapes.num_classes,
        image_shape=shapes.image_shape,
        data_format=data_format,
        seed=seed,
    )
    store = CheckpointStore(folder)
    state = CheckpointState(step=3, seed=0, data_checksum=shapes.checksum, num_replicas=1)
    store.save(tf.train.Checkpoint(model=model), state)
    return store, model.get_weights()


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "float64"])
def test_any_layout_and_precision_gives_the_saved_weights_in_float32(
    tmp_path, shapes, data_format, precision
):
    config = CONFIG.replace({"precision": precision})
    store, weights = saved(tmp_path, shapes, config, data_format)
    model = trained_model(config, shapes, store, 3)
    assert {layer.compute_dtype for layer in model.layers} == {"float32"}
    assert model.layers[2].data_format == "channels_last"
    for found, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_a_checkpoint_of_another_network_is_refused(tmp_path, shapes):
    store, _ = saved(tmp_path, shapes)
    with pytest.raises(InputError, match="step-00000003 is whole, but doesn't fit the network"):
        trained_model(CONFIG.replace({"width_factor": 0.25}), shapes, store, 3)
