"""Records by hand equal those of TensorFlow; a timeline says what happened."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from course.lessons.data import timeline
from course.lessons.data.records import draw_record, record_fields, tfrecord
from labkit.config import Config


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
