"""The held-out examples are a balanced, seeded choice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.data.splitting import channel_statistics, stratified_validation_rows


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0, 1), st.integers(0, 2**32))
def test_every_class_is_held_out_in_proportion(labels, share, seed):
    labels = np.array(labels)
    size = round(share * len(labels))
    chosen = stratified_validation_rows(labels, 5, size, seed)
    assert chosen.sum() == size
    exact = np.bincount(labels, minlength=5) * size / len(labels)
    assert (np.abs(np.bincount(labels[chosen], minlength=5) - exact) < 1 + 1e-9).all()


def test_the_seed_decides_which():
    labels = np.arange(1000) % 10
    first, again, other = (stratified_validation_rows(labels, 10, 100, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (np.bincount(labels[first]) == 10).all()
    assert (first & other).sum() < 40  # 10 are expected of two independent choices


def test_statistics_are_those_of_numpy():
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), np.uint8)
    images[..., 2] = 7
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std[:2], (images / 255).std((0, 1, 2))[:2], rtol=1e-12)
    assert std[2] == 1.0 or std[2] < 1e-9  # constant: must not blow up to infinity
