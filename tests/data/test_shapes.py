"""The generated data set depends only on its seed, is balanced, and is too hard for a linear model."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from labkit.data import shapes


@pytest.fixture(scope="module")
def drawn():
    return shapes.generate(train_count=3000, test_count=1000)


@pytest.mark.parametrize(
    "targets", ["class", *(pytest.param(name, marks=pytest.mark.long) for name in ("classes", "numbers"))]
)
def test_the_layout_is_cifar10s_and_the_seed_decides_every_byte(drawn, targets):
    counts = {"train_count": 3000, "test_count": 1000}
    first = drawn if targets == "class" else shapes.generate(**counts, targets=targets)
    assert first.train_images.shape == (3000, 32, 32, 3) and first.train_images.dtype == np.uint8
    assert first.test_images.shape == (1000, 32, 32, 3) and first.test_images.dtype == np.uint8
    numbers = targets == "numbers"
    assert first.train_labels.dtype == first.test_labels.dtype == (np.float32 if numbers else np.int32)
    assert len(first.classes) == len(set(first.classes)) == (1 if numbers else 10)
    every = [image.tobytes() for image in (*first.train_images, *first.test_images)]
    assert len(set(every)) == len(every)
    again = shapes.generate(**counts, targets=targets)
    assert shapes.describe(again) == shapes.describe(first)
    other = shapes.generate(seed=1, **counts, targets=targets)
    assert shapes.describe(other)["sha256"] != shapes.describe(first)["sha256"]


def test_classes_are_balanced_and_mixed(drawn):
    np.testing.assert_array_equal(np.bincount(drawn.train_labels), [300] * 10)
    np.testing.assert_array_equal(np.bincount(drawn.test_labels), [100] * 10)
    assert (np.diff(drawn.train_labels) == 0).mean() < 0.2


def test_the_bytes_are_the_same_on_every_machine():
    images, _ = shapes.generate_split(seed=0, count=250, stream=0)
    # Computed on one machine (x86-64 with AVX-512, NumPy 2.4); every other must generate the same bytes.
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == "fb71b9f3de0c4854"


def _softmax_regression(images, labels, steps=100, rate=0.05):
    """Fit softmax regression by full-batch gradient descent with momentum; return a classifier."""
    mean = images.mean(0)
    inputs = np.hstack([(images - mean) / 64, np.ones((len(images), 1))]).astype(np.float32)
    targets = np.eye(10, dtype=np.float32)[labels]
    weights = np.zeros((inputs.shape[1], 10), np.float32)
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        scores = inputs @ weights
        exponents = np.exp(scores - scores.max(1, keepdims=True))
        gradient = inputs.T @ (exponents / exponents.sum(1, keepdims=True) - targets) / len(inputs)
        velocity = 0.9 * velocity - rate / 30 * gradient
        weights += velocity
    return lambda x: (np.hstack([(x - mean) / 64, np.ones((len(x), 1))]) @ weights).argmax(1)


@pytest.mark.long
def test_a_linear_model_stays_under_60_percent_and_solves_an_easier_set(drawn):
    train, test = (x.reshape(len(x), -1).astype(np.float32) for x in (drawn.train_images, drawn.test_images))
    classify = _softmax_regression(train, drawn.train_labels)
    assert (classify(train) == drawn.train_labels).mean() > 0.3  # it does learn
    assert (classify(test) == drawn.test_labels).mean() < 0.6
    generator = np.random.default_rng(0)  # and exceeds the bound where it can, so the bound means something
    labels = np.arange(1000) % 10
    images = generator.integers(0, 120, (1000, 3072)).astype(np.float32)
    images[np.arange(1000), labels * 7] += 4000
    classify = _softmax_regression(images[:800], labels[:800])
    assert (classify(images[800:]) == labels[800:]).mean() > 0.9


# The smallest published form (6n + 2 layers, n = 1) and a schedule that needs few steps.
_SMALL_RESNET = (
    "--num-layers 8 --train-steps 800 --train-batch-size 64 --eval-batch-size 500 --learning-rate 0.1 "
    "--learning-rate-schedule one_cycle --nesterov --weight-decay 5e-4 --weight-decay-of kernels "
    "--batch-norm-decay 0.9 --validate-every-steps 0"
)


@pytest.mark.slow
@pytest.mark.long
def test_a_small_resnet_passes_90_percent(session_home, tmp_path):
    command = [sys.executable, "-m", "labkit", "train", "--dataset", "shapes", *_SMALL_RESNET.split()]
    done = subprocess.run(
        [*command, "--job-dir", str(tmp_path / "run")],
        env={**os.environ, "LABKIT_HOME": str(session_home)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    predictions = json.loads((tmp_path / "run" / "predictions" / "test.json").read_text())
    assert predictions["examples"] == shapes.DEFAULT_TEST_COUNT
    assert predictions["accuracy"] > 0.9
