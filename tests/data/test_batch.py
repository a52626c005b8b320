"""The batch that NumPy makes is the batch that the training gets, bit by bit."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.config import Config
from labkit.data.augment import augment
from labkit.data.batch_of_step import batch_of_step
from labkit.data.hashes import augmentation_key
from labkit.data.inputs import Augmentation, augmentation_of
from labkit.data.network_input import as_input, network_input_of, shrunk, standardize
from labkit.data.pipeline import train_dataset
from labkit.models.variants import shrunk as shrunk_by_tensorflow

long = functools.partial(pytest.param, marks=pytest.mark.long)


def _assert_same_as_training(manifest, data, *, seed, step):
    batch = batch_of_step(manifest, data, seed=seed, step=step)
    [(images, labels, index)] = train_dataset(
        manifest,
        global_batch_size=data.train_batch_size,
        seed=seed,
        start_step=step - 1,
        stop_step=step,
        augmentation=augmentation_of(data),
        network_input=network_input_of(data),
        mixup_alpha=data.mixup_alpha,
        cutmix_alpha=data.cutmix_alpha,
        balanced=data.balanced_sampling,
        input_path=data.input_path,
        with_index=True,
    )
    assert batch.images.dtype == np.uint8 and batch.images.shape == images.shape
    if data.standardization == "dataset":
        assert batch.standardized.tobytes() == images.numpy().tobytes()
    np.testing.assert_allclose(batch.standardized, images, atol=2e-5)
    if not (data.brightness or data.contrast or data.mixup_alpha) and data.standardization == "dataset":
        seen = as_input(tf.constant(batch.images), manifest, network_input_of(data))
        assert seen.numpy().tobytes() == images.numpy().tobytes()
    assert batch.targets.tobytes() == labels.numpy().tobytes()
    assert batch.index.tobytes() == index.numpy().tobytes()


@settings(max_examples=30, deadline=None)
@given(
    augmentation=st.builds(
        Augmentation,
        crop_padding=st.integers(0, 6),
        crop_padding_mode=st.sampled_from(("constant", "reflect")),
        flip=st.sampled_from(("random", "none", "alternating")),
        cutout_size=st.integers(0, 12),
        crop_size=st.sampled_from((None, 16, 24, 31)),
        brightness=st.sampled_from((0.0, 63.0)),
        contrast=st.sampled_from((0.0, 0.8)),
        rotation=st.sampled_from((0.0, 15.0, 179.0)),
        trivial=st.booleans(),
    ),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 10**6),
)
def test_every_augmentation_gives_the_same_images(prepared, augmentation, seed, epoch):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (8, 32, 32, 3), np.uint8)
    epochs, index = epoch + np.arange(8) // 4, generator.integers(0, 10**5, 8)
    key = augmentation_key(seed)
    found = augment(images, prepared, augmentation, key=key, epoch=epochs, index=index)
    wanted = augment(
        tf.constant(images),
        prepared,
        augmentation,
        key=key,
        epoch=tf.constant(epochs),
        index=tf.constant(index),
    )
    assert found.tobytes() == wanted.numpy().tobytes()
    assert standardize(found, prepared).tobytes() == standardize(wanted, prepared).numpy().tobytes()


@pytest.mark.parametrize("path", ["memory", long("streaming")])
@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (1, {}),
        (7, {"train_batch_size": 13}),  # with examples of two epochs
        (40, {"train_batch_size": 87, "crop_padding_mode": "reflect", "flip": "alternating"}),
        (3, {"use_distortion_for_training": False, "crop_size": 24}),
        (5, {"crop_size": 24, "crop_padding": 0, "brightness": 63, "contrast": 0.8, "train_batch_size": 13}),
        (5, {"crop_size": 20, "brightness": 63, "contrast": 0.8, "standardization": "per_image"}),
        long(19, {"crop_size": 24, "brightness": 63, "contrast": 0.8, "mixup_alpha": 1.0}),
        (4, {"random_rotation": 20, "train_batch_size": 13}),
        long(7, {"trivial_augment": True, "train_batch_size": 13, "contrast": 0.2}),
        (8, {"cutmix_alpha": 1.0, "train_batch_size": 13}),
        long(9, {"cutmix_alpha": 0.3, "standardization": "per_image", "crop_size": 24, "brightness": 63}),
        (6, {"mixup_alpha": 0.2, "standardization": "per_image", "cutout_size": 8, "seed": 11}),
    ],
)
def test_a_batch_is_that_of_the_training(prepared, path, step, settings):
    config = Config.from_flat({"train_batch_size": 12, "input_path": path} | settings)
    _assert_same_as_training(prepared, config.data, seed=config.run.seed, step=step)


@pytest.mark.parametrize("step", [1, 8, 500])  # 8: with examples of two epochs
def test_a_balanced_batch_is_that_of_the_training(prepared, step):
    values = {
        "train_batch_size": 12,
        "input_path": "memory",
        "balanced_sampling": True,
        "flip": "alternating",
    }
    _assert_same_as_training(prepared, Config.from_flat(values).data, seed=7, step=step)


@pytest.mark.long
def test_a_batch_with_several_labels_for_each_image(tmp_path):
    from tests.multilabel import prepare_small

    manifest = prepare_small(tmp_path)
    values = {"train_batch_size": 16, "loss": "sigmoid", "input_path": "memory"}
    for more in ({}, {"mixup_alpha": 1.0}, {"cutmix_alpha": 1.0}):
        _assert_same_as_training(manifest, Config.from_flat(values | more).data, seed=0, step=3)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(1, 40))
def test_shrunk_images_are_those_of_the_network(before, after):
    images = np.random.default_rng(0).normal(size=(2, before, before, 3)).astype(np.float32)
    size = min(before, after)
    np.testing.assert_allclose(
        shrunk(images, size), shrunk_by_tensorflow(tf.constant(images), size), atol=5e-5
    )


def test_a_batch_needs_no_tensorflow(prepared):
    program = (
        "import sys; from labkit.config import Config; from labkit.data.manifest import load_manifest; "
        "from labkit.data.batch_of_step import batch_of_step; "
        "data = Config.from_flat({'input_path': 'memory', 'train_batch_size': 8}).data; "
        f"manifest = load_manifest({str(prepared.directory.parent)!r}, 'cifar10'); "
        "print(len(batch_of_step(manifest, data, seed=0, step=1)), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["8", "False"], done.stderr
