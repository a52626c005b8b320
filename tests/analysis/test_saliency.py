"""A run's network from any layout and precision; maps of the pixels that its prediction depends on."""

import numpy as np
import pytest
import tensorflow as tf

import labkit
from labkit.analysis.network import (
    covered,
    gradient_map,
    load_network,
    occlusion_map,
    patch_positions,
    trained_model,
)
from labkit.config import Config
from labkit.errors import InputError
from labkit.models.registry import build_model
from labkit.run_directory import RunDirectory
from labkit.training.checkpoints import CheckpointState, CheckpointStore

CONFIG = Config.from_flat({"model": "fast", "width_factor": 0.125, "train_steps": 10})


@pytest.fixture
def trained_run(smoke):
    return labkit.load_run(smoke)


def test_patches_reach_both_edges():
    for length, patch, stride in ((32, 6, 2), (10, 3, 4), (5, 5, 2), (7, 2, 3)):
        positions = patch_positions(length, patch, stride)
        assert (positions[0], positions[-1]) == (0, length - patch)


def test_each_copy_has_one_covered_square_and_the_image_stays():
    image = np.random.default_rng(0).integers(0, 256, (12, 8, 3)).astype(np.uint8)
    before = image.copy()
    images, masks = covered(image, 4, 2)
    assert len(images) == len(masks) == 5 * 3
    assert (masks.sum(axis=(1, 2)) == 16).all()
    for copy, mask in zip(images, masks, strict=True):
        np.testing.assert_array_equal(copy[~mask], image[~mask])
        assert len(np.unique(copy[mask], axis=0)) == 1
    np.testing.assert_array_equal(image, before)


def test_the_fall_is_where_the_network_looks():
    image = np.random.default_rng(1).integers(0, 256, (16, 16, 3)).astype(np.uint8)

    def predict(images):
        seen = (images[:, 10, 7] == image[10, 7]).all(axis=-1)
        return np.stack([np.where(seen, 0.9, 0.1), np.where(seen, 0.1, 0.9)], axis=1)

    fall = occlusion_map(predict, image, 0, patch=4, stride=1)
    assert np.unravel_index(fall.argmax(), fall.shape) == (10, 7)
    assert fall[10, 7] == pytest.approx(0.8)
    assert fall[0, 15] == 0
    np.testing.assert_allclose(occlusion_map(predict, image, 1, patch=4, stride=1), -fall)


@pytest.mark.slow
def test_a_runs_network_predicts_what_the_run_recorded(trained_run):
    predictions = trained_run.predictions("test")
    network = load_network(trained_run)
    np.testing.assert_allclose(
        network.probabilities(predictions.images), predictions.probabilities, atol=1e-4
    )
    image, label = predictions.images[0], int(predictions.predicted[0])
    found = gradient_map(network, image, label)
    assert found.shape == image.shape[:2] and (found >= 0).all()
    # The derivative predicts how the logit changes when one standardized pixel changes a little.
    row, column = np.unravel_index(found.argmax(), found.shape)
    pixels = network.inputs(image[None]).numpy()
    changes = []
    for channel in range(3):
        moved = pixels.copy()
        moved[0, row, column, channel] += 1e-2
        logits = [network.model(x, training=False).numpy()[0, label] for x in (pixels, moved)]
        changes.append(abs(logits[1] - logits[0]) / 1e-2)
    assert max(changes) == pytest.approx(found.max(), rel=0.2)


@pytest.mark.slow
def test_a_network_without_its_data_or_checkpoint_is_refused(trained_run, tmp_path):
    with pytest.raises(InputError, match="--checkpoint is '5'"):
        load_network(trained_run, "5")
    copy = RunDirectory(tmp_path / "run")
    copy.create()
    copy.config_path.write_bytes((trained_run.path / "config.json").read_bytes())
    with pytest.raises(InputError, match="no checkpoint yet"):
        load_network(copy)


# ---- the weights of a checkpoint -----------------------------------------------------------------------


def saved(folder, shapes, config=CONFIG, data_format="channels_last"):
    """Save a network at step 3 and return the store and the network's weights."""
    shape = {"num_classes": shapes.num_classes, "image_shape": shapes.image_shape}
    model = build_model(config.model, **shape, data_format=data_format, seed=1)
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
