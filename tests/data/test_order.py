"""Balanced epochs: all classes equally often, a pure function of the seed, for any replicas and resumes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit
from labkit.config import Config
from labkit.data.hashes import balance_of, draws_of, epoch_order, order_key
from labkit.data.pipeline import InputShare, train_dataset
from labkit.errors import InputError
from labkit.training.checks import check_targets
from tests.multilabel import prepare_small


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 2**31 - 1), st.integers(0, 9))
def test_each_epoch_has_as_many_examples_of_each_class(labels, seed, epoch):
    classes = np.array(labels, np.int32)
    balance, key = balance_of(classes), order_key(seed)
    order = epoch_order(len(classes), key, epoch, balance)
    of_tensor = epoch_order(len(classes), key, tf.constant(epoch, tf.int64), balance)
    assert order.dtype == np.int64 and order.tobytes() == of_tensor.numpy().tobytes()
    order = order % len(classes)
    counts = np.bincount(classes[order], minlength=5)[np.unique(classes)]
    assert len(order) == len(classes) and counts.max() - counts.min() <= 1
    for label in np.unique(classes):  # within a class, no example is shown twice more often than another
        shown = np.bincount(order, minlength=len(classes))[classes == label]
        assert shown.max() - shown.min() <= 1


def test_epochs_and_seeds_differ_and_every_example_of_a_large_class_has_its_turn():
    labels = np.array([0] * 90 + [1] * 10, np.int32)
    balance = balance_of(labels)
    orders = [epoch_order(100, order_key(seed), epoch, balance) for seed in (1, 2) for epoch in range(20)]
    assert len({order.tobytes() for order in orders}) == len(orders)
    assert len(np.unique(np.concatenate(orders[:20]) % 100)) == 100


def test_an_image_that_is_shown_again_is_flipped_to_its_other_side():
    labels = np.array([0] * 6 + [1], np.int32)
    epoch = np.array([4])
    shown = np.sort(epoch_order(7, order_key(1), 4, balance_of(labels)))
    again = shown[shown % 7 == 6]
    np.testing.assert_array_equal(again, [6, 13, 20])
    draws = [int(draws_of(epoch, np.array([one]), 7)[0]) for one in again]
    assert draws[0] == 4 and [draw % 2 for draw in draws] == [0, 1, 0]


def batches(manifest, start, stop, **options):
    dataset = train_dataset(
        manifest,
        global_batch_size=12,
        seed=3,
        start_step=start,
        stop_step=stop,
        input_path="memory",
        balanced=True,
        with_index=True,
        **options,
    )
    return [tuple(part.numpy() for part in batch) for batch in dataset]


def test_resumes_and_replicas_see_the_same_batches_and_repeats_are_augmented_anew(prepared):
    whole = batches(prepared, 0, 16)
    for one, other in zip(whole[9:], batches(prepared, 9, 16), strict=True):
        assert all(part.tobytes() == again.tobytes() for part, again in zip(one, other, strict=True))
    halves = [batches(prepared, 0, 16, share=InputShare(2, first, 1)) for first in (0, 1)]
    for one, *parts in zip(whole, *halves, strict=True):
        assert np.concatenate([images for images, _, _ in parts]).tobytes() == one[0].tobytes()
    seen: dict[int, set[bytes]] = {}
    for images, _, index in whole[:7]:  # of the first epoch
        for image, row in zip(images, index.tolist(), strict=True):
            seen.setdefault(row, set()).add(image.tobytes())
    assert max(map(len, seen.values())) > 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input_path": "streaming"}, "--input-path memory"),
        ({"class_weights": "balanced"}, "leave one of them out"),
    ],
)
def test_what_it_cannot_go_with_is_one_line(values, said):
    with pytest.raises(InputError) as refused:
        Config.from_flat({"balanced_sampling": True} | values)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_several_labels_are_refused(tmp_path):
    config = Config.from_flat({"balanced_sampling": True, "loss": "sigmoid"})
    with pytest.raises(InputError, match="several labels"):
        check_targets(config, prepare_small(tmp_path))
    with pytest.raises(InputError, match="several labels"):
        labkit.train(dataset="shapes_multilabel", loss="sigmoid", balanced_sampling=True)
