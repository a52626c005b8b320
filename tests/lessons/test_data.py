"""Records by hand equal TensorFlow's; a timeline says what happened; memory is bounded by what is kept."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from course.lessons.data import memory, shuffling, timeline
from course.lessons.data.records import draw_record, record_fields, tfrecord
from course.lessons.data.shuffling import images_of_step
from labkit.config import Config
from tests.tiny import prepare_tiny


def test_a_file_written_by_hand_is_one_for_tensorflow(tmp_path):
    payloads = [b"", b"one", bytes(range(256)) * 3]
    path = tmp_path / "file"
    path.write_bytes(tfrecord(payloads))
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == payloads
    fields = record_fields(path.read_bytes(), 16)
    assert [field.end - field.start for field in fields] == [8, 4, 3, 4]
    assert "length" in repr(draw_record(path.read_bytes()))


@pytest.mark.parametrize("end", [5, 20])
def test_a_record_that_is_cut_off_is_an_error(end):
    with pytest.raises(ValueError, match="record"):
        record_fields(tfrecord([b"payload"])[:end])


@pytest.fixture
def photographs(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    config = Config.from_flat({"train_batch_size": 2, "train_steps": 4})
    return timeline.Photographs(tmp_path, images, np.arange(8) % 3, config, delay=0.02)


def test_stages_overlap_only_where_the_pipeline_works_ahead(photographs):
    def train(images, labels):
        assert images.shape == (2, 32, 32, 3)
        assert labels.shape == (2,)
        tf.numpy_function(lambda: np.float32(0), [], tf.float32)

    naive = photographs.numbers.map(photographs.read).map(photographs.decode).map(photographs.augment)
    ahead = photographs.numbers.map(photographs.read, num_parallel_calls=4).map(photographs.decode)
    ahead = ahead.map(photographs.augment).prefetch(2)
    one, other = (timeline.train_through(dataset, photographs, train) for dataset in (naive, ahead))
    for events in (one, other):
        assert [event.batch for event in events if event.stage == "train"] == [0, 1, 2, 3]
        assert min(event.start for event in events) == 0
        assert timeline.stage_seconds(events)["read"] >= 0.02
        for batch in range(4):
            mine = [event for event in events if event.batch == batch]
            assert all(a.end <= b.start + 1e-4 for a, b in itertools.pairwise(mine))
    assert timeline.overlaps(one) == 0
    assert timeline.overlaps(other) > 0
    assert "Timelines" in repr(timeline.draw_timelines({"naive": one, "ahead": other}))


def test_a_buffer_delays_and_advances_as_its_size_says():
    for size in (1, 7, 50):
        order = shuffling.shuffled(50, size)
        assert sorted(order) == list(range(50))
        assert (order - np.arange(50)).max() < size
    assert shuffling.classes_in_a_batch(np.repeat([0, 1], 4), 4) == 1
    assert shuffling.classes_in_a_batch(np.tile([0, 1], 4), 4) == 2


def test_a_step_has_the_same_images_wherever_the_run_began(tmp_path):
    manifest = prepare_tiny(tmp_path)
    config = Config.from_flat({"train_batch_size": 4, "seed": 3})
    whole = images_of_step(manifest, config, 3, began_at=0)
    np.testing.assert_array_equal(whole, images_of_step(manifest, config, 3))
    parts = [images_of_step(manifest, config, 3, replica=number, replicas=2) for number in (0, 1)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_memory_is_watched_until_the_limit(tmp_path):
    stream = memory.stream_again(prepare_tiny(tmp_path), megabytes=0.2, batch_size=4)
    assert memory.watch_memory(stream).read[-1] >= 0.2
    many = [(tf.zeros([100, 100, 100, 3], tf.uint8),) for _ in range(40)]
    kept = memory.watch_memory(many, keep=True, limit=30)
    assert kept.grown[-1] > 30
    assert len(kept.read) < 40
    assert "limit 30 MB" in repr(memory.draw_memory({"kept": kept}, 30))
