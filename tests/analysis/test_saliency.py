"""Maps of important pixels name the pixels that a prediction depends on."""

import numpy as np
import pytest

import labkit
from labkit.analysis.network import load_network
from labkit.analysis.saliency import covered, gradient_map, occlusion_map, patch_positions
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from tests.tiny import prepare_tiny

FIELDS = {"dataset": "shapes", "num_layers": 8, "train_batch_size": 16, "train_steps": 6, "num_gpus": 0}


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saliency")
    prepare_tiny(folder / "data")
    return labkit.train(**FIELDS, data_dir=folder / "data", job_dir=folder / "run", batch_norm_decay=0.9)


@pytest.mark.parametrize(("length", "patch", "stride"), [(32, 6, 2), (10, 3, 4), (5, 5, 2), (7, 2, 3)])
def test_patches_reach_both_edges(length, patch, stride):
    positions = patch_positions(length, patch, stride)
    assert positions[0] == 0
    assert positions[-1] == length - patch


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
