"""A batch depends only on (data set, seed, step), and every epoch contains every example once."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.config.data import DataConfig
from labkit.data import inputs
from labkit.data.augment import augmentation_offsets
from labkit.data.hashes import augmentation_key
from labkit.data.inputs import PADDING, Augmentation, choose_input_path, resolved_crop
from labkit.data.network_input import standardize
from labkit.data.pipeline import InputShare, eval_dataset, train_dataset
from labkit.data.shards import load_split
from labkit.errors import InputError

PATHS = ("memory", "streaming")
EXAMPLES = 87


def _batches(manifest, start, stop, batch=12, path="memory", seed=5, **options):
    dataset = train_dataset(
        manifest,
        global_batch_size=batch,
        seed=seed,
        start_step=start,
        stop_step=stop,
        input_path=path,
        shuffle_buffer_size=25,
        **options,
    )
    return [(images.numpy(), labels.numpy()) for images, labels in dataset]


@pytest.fixture(scope="module", params=["pixels", "jpegs"])
def either(request, prepared, jpegs):
    """The small CIFAR-10, and images of 72 pixels that are stored as JPEGs."""
    return {"pixels": prepared, "jpegs": jpegs}[request.param]


def _cropped(manifest):
    """Return the augmentation that a training on these images has unless told otherwise."""
    crop = resolved_crop(DataConfig(), manifest.image_shape)
    return Augmentation(random_resized_crop=crop)


def _assert_equal(first, second):
    assert len(first) == len(second)
    for (images, labels), (other_images, other_labels) in zip(first, second, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


@pytest.fixture(scope="module")
def rows(prepared):
    """Find a stored image's row in the training split."""
    images, labels = load_split(prepared, "train")
    table = {image.tobytes(): row for row, image in enumerate(standardize(images, prepared))}

    def find(batches):
        found = [
            (table[image.tobytes()], label) for pair in batches for image, label in zip(*pair, strict=True)
        ]
        assert all(labels[row] == label for row, label in found)
        return [row for row, _ in found]

    return find


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("batch", [1, 12, 29, 87, 100])
def test_every_epoch_contains_every_example_once_for_any_batch_size(prepared, rows, path, batch):
    steps = -(-4 * EXAMPLES // batch)
    order = rows(_batches(prepared, 0, steps, batch, path, augmentation=None))[: 4 * EXAMPLES]
    epochs = np.array(order).reshape(4, EXAMPLES)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(EXAMPLES))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert (np.diff(epochs) == 1).mean() < 0.2  # every epoch is shuffled


@settings(max_examples=5, deadline=None)
@given(start=st.integers(0, 39), length=st.integers(0, 9), path=st.sampled_from(PATHS))
def test_batches_do_not_depend_on_the_start_step(prepared, start, length, path):
    whole = _batches(prepared, 0, start + length, path=path)
    _assert_equal(_batches(prepared, start, start + length, path=path), whole[start:])


@pytest.mark.parametrize("path", ["memory", pytest.param("streaming", marks=pytest.mark.long)])
@pytest.mark.parametrize("shares", [[(3, 0, 3)], [(4, 0, 1), (4, 1, 2), (4, 3, 1)]])
def test_the_slices_of_the_replicas_form_the_global_batch_after_a_resume_too(either, path, shares):
    options = {"path": path, "augmentation": _cropped(either)}
    whole = _batches(either, 0, 10, **options)[5:]
    parts = [_batches(either, 5, 10, share=InputShare(*share), **options) for share in shares]
    for step in range(5):
        local = [
            pair
            for part, (_, _, count) in zip(parts, shares, strict=True)
            for pair in part[step * count : (step + 1) * count]
        ]
        joined = np.concatenate([x for x, _ in local]), np.concatenate([y for _, y in local])
        _assert_equal([joined], [whole[step]])


@pytest.mark.parametrize("path", PATHS)
def test_batches_depend_only_on_the_seed(prepared, path):
    first = _batches(prepared, 0, 10, path=path)
    tf.random.set_seed(1234)
    _assert_equal(_batches(prepared, 0, 10, path=path), first)
    other = _batches(prepared, 0, 10, path=path, seed=6)
    assert any((x != y).any() for (_, x), (_, y) in zip(first, other, strict=True))


def test_no_pipeline_is_tuned_by_a_thread_that_its_end_waits_for(prepared):
    """It sleeps for up to a minute: a training ended that much later than its last line."""
    settings = {"global_batch_size": 12, "seed": 5, "start_step": 0, "stop_step": 9}
    datasets = [train_dataset(prepared, input_path=path, **settings) for path in PATHS]
    datasets.append(eval_dataset(prepared, "test", global_batch_size=8))
    assert [dataset.options().autotune.enabled for dataset in datasets] == [False] * 3


def test_the_augmentation_is_the_documented_function_of_seed_epoch_and_row(prepared, rows):
    plain = _batches(prepared, 0, 3, EXAMPLES, augmentation=None)
    augmented = _batches(prepared, 0, 3, EXAMPLES)
    images, _ = load_split(prepared, "train")
    padded = np.pad(images, [(0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)])
    for epoch in range(3):
        order = np.array(rows([plain[epoch]]))
        draws = augmentation_offsets(augmentation_key(5), np.full(EXAMPLES, epoch), order)
        for place, (row, top, left, flip) in enumerate(zip(order, *draws, strict=True)):
            crop = padded[row, top : top + 32, left : left + 32]
            expected = standardize(crop[:, ::-1] if flip else crop, prepared)
            np.testing.assert_array_equal(augmented[epoch][0][place], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 3, "stop": 2}, "not a range"),
        ({"start": -1, "stop": 2}, "not a range"),
        ({"batch": 0}, "batch size 0"),
        ({"batch": 10, "share": InputShare(4, 0, 1)}, "batch size 10 .*multiple of 4"),
        ({"path": "disk"}, "input path 'disk'.*auto, memory, streaming"),
        ({"arrays": (np.zeros((86, 32, 32, 3), np.uint8), np.zeros(86, np.int32))}, "arrays have 86"),
    ],
)
def test_invalid_arguments_are_refused(prepared, options, message):
    with pytest.raises(InputError, match=message):
        _batches(prepared, **{"start": 0, "stop": 1, **options})


@pytest.mark.parametrize("share", [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0), (2, 1, 2)])
def test_invalid_shares_are_refused(share):
    with pytest.raises(InputError):
        InputShare(*share)


@settings(max_examples=6, deadline=None)
@given(
    batch_share=st.integers(1, 12), replicas=st.integers(1, 4), split=st.sampled_from(["test", "validation"])
)
def test_evaluation_counts_every_example_once(either, batch_share, replicas, split):
    batch = batch_share * replicas
    per_replica = [
        list(eval_dataset(either, split, global_batch_size=batch, share=InputShare(replicas, replica, 1)))
        for replica in range(replicas)
    ]
    assert len({len(batches) for batches in per_replica}) == 1
    images, labels = load_split(either, split)
    expected = standardize(images, either)
    seen = []
    for batches in per_replica:
        for batch_images, batch_labels, index, weight in batches:
            assert batch_images.shape == (batch_share, *either.image_shape)
            real = weight.numpy() == 1
            np.testing.assert_array_equal(weight.numpy()[~real], 0)
            np.testing.assert_array_equal(index.numpy()[~real], -1)
            rows = index.numpy()[real]
            np.testing.assert_array_equal(batch_images.numpy()[real], expected[rows])
            np.testing.assert_array_equal(batch_labels.numpy()[real], labels[rows])
            seen.extend(rows)
    assert sorted(seen) == list(range(len(labels)))


def test_auto_chooses_memory_only_if_the_images_fit_easily(prepared, monkeypatch, tmp_path):
    needed = prepared.count("train") * 3072
    monkeypatch.setattr(inputs, "available_memory", lambda: 4 * needed)
    assert choose_input_path(prepared) == "memory"
    monkeypatch.setattr(inputs, "available_memory", lambda: 4 * needed - 4)
    assert choose_input_path(prepared) == "streaming"
    assert choose_input_path(prepared, "memory") == "memory"
    monkeypatch.undo()
    monkeypatch.setattr(inputs, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    for limit, chosen in (("100000", "streaming"), ("max", "memory")):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert choose_input_path(prepared) == chosen
