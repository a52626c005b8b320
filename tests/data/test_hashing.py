"""Hashes and permutations are correct, complete and look random."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.data.hashes import mix64, mixed_in, permutation

CHI_SQUARE_LIMIT = 6.0  # standard deviations above the mean


def _excess(counts: np.ndarray, degrees: int) -> float:
    """Chi-square of counts against uniformity, in standard deviations of its distribution."""
    expected = counts.sum() / counts.size
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


def test_mix64_gives_splitmix64s_published_first_output():
    assert mix64(0) == 0xE220A8397B1DCDAF


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_tensors_and_integers_have_equal_hashes(first, second):
    for value in (tf.constant(second, tf.uint64), np.array([second]), second):
        [state] = np.atleast_1d(mixed_in(mix64(first), value))
        assert int(state) == mix64(first, second)


def test_nearby_values_have_unrelated_hashes():
    hashes = {mix64(seed, value) for seed in range(50) for value in range(50)}
    assert len(hashes) == 2500


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.integers(0, 10**9))
def test_a_permutation_contains_every_index_once_and_is_the_same_in_numpy(size, key, epoch):
    order = permutation(size, key, tf.constant(epoch, tf.int64))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))
    np.testing.assert_array_equal(permutation(size, key, epoch), order)


def test_a_permutation_is_the_order_of_the_hashes():
    key, epoch = mix64(5), 3
    hashes = np.array([mix64(5, epoch, position) for position in range(50)], np.uint64).view(np.int64)
    np.testing.assert_array_equal(permutation(50, key, tf.constant(epoch, tf.int64)), np.argsort(-hashes))


@pytest.mark.parametrize("size", [2, 10, 64, 97])
def test_orders_are_uniform_over_epochs(size):
    orders = permutation(size, mix64(11), tf.range(400 * size, dtype=tf.int64)).numpy()
    table = np.stack([np.bincount(orders[:, position], minlength=size) for position in range(size)])
    assert _excess(table, (size - 1) ** 2) < CHI_SQUARE_LIMIT
    if size > 2:  # which index follows which within an epoch
        follows = np.bincount((orders[:, 1] - orders[:, 0]) % size, minlength=size)[1:]
        assert _excess(follows, size - 2) < CHI_SQUARE_LIMIT
    # which index takes a position from one epoch to the next
    moves = np.bincount((orders[1:, 0] - orders[:-1, 0]) % size, minlength=size)
    assert _excess(moves, size - 1) < CHI_SQUARE_LIMIT
