"""A function of one's own that changes the training images: what it sees, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest

from labkit.config import Config
from labkit.data.augment import changed_by_own, check_own
from labkit.data.batch_of_step import batch_of_step
from labkit.data.inputs import InputShare, augmentation_of
from labkit.data.network_input import network_input_of
from labkit.data.pipeline import train_dataset
from labkit.errors import InputError
from labkit.experiments.replay.batch import NeedsReplay, batch_without_tensorflow
from labkit.parts.code import allow
from labkit.parts.objects import as_files
from labkit.run_directory import RunDirectory, write_json_atomic
from tests import own_nets

OWN = Path(own_nets.__file__)


@pytest.fixture(autouse=True)
def allowed():
    allow({str(OWN): OWN.read_bytes()})


@pytest.mark.parametrize(
    "beside",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in ({}, {"use_distortion_for_training": False})),
        {"mixup_alpha": 0.3},
    ],
)
def test_replicas_a_resumed_run_and_a_replayed_batch_see_the_same_images(shapes, beside):
    values = {"dataset": "shapes", "augment": f"{OWN}:noisy", "train_batch_size": 8} | beside
    data = Config.from_flat(values).data

    def batches(first, share):
        dataset = train_dataset(
            shapes,
            global_batch_size=8,
            seed=3,
            start_step=first,
            stop_step=3,
            augmentation=augmentation_of(data),
            network_input=network_input_of(data),
            mixup_alpha=data.mixup_alpha,
            share=share,
        )
        return [images.numpy() for images, _ in dataset]

    whole = batches(0, InputShare())
    halves = [batches(0, InputShare(num_replicas=2, first_replica=number)) for number in range(2)]
    for step, images in enumerate(whole):
        np.testing.assert_array_equal(images, np.concatenate([half[step] for half in halves]))
        made = batch_of_step(shapes, data, seed=3, step=step + 1)
        np.testing.assert_allclose(made.standardized, images, atol=1e-5)
    np.testing.assert_array_equal(batches(2, InputShare())[0], whole[2])
    assert np.abs(whole[0] - whole[1]).max() > 0.1


def test_seeds_differ_by_example_and_epoch_and_nothing_else():
    images = np.zeros((4, 2, 2, 1), np.uint8)
    epoch, index = np.array([0, 0, 1, 0]), np.array([5, 6, 5, 5])
    found = changed_by_own(f"{OWN}:shows_seeds", images, key=9, epoch=epoch, index=index)[:, :, 0, 0]
    assert np.array_equal(found[0], found[3]) and len({tuple(row) for row in found.tolist()}) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("draws_anew", "in two ways"),
        ("mixes_images", "others of its batch"),
        ("crops_images", "of the same shape"),
        ("scales_to_one", "returned numbers up to 1 for pixels up to 255"),
        ("nowhere", "has no 'nowhere'"),
    ],
)
def test_what_is_no_function_of_an_image_and_its_seeds_is_refused(name, words):
    with pytest.raises(InputError, match=words) as caught:
        check_own(f"{OWN}:{name}", (8, 8, 3))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("--augment")


def test_only_something_in_a_file_is_taken():
    for value in ("noisy", "net.keras"):
        with pytest.raises(InputError, match=r"^--augment is .*FILE\.py:NAME"):
            Config.from_flat({"augment": value})
    with as_files({"augment": own_nets.noisy}) as flags:
        assert flags["augment"].endswith("own_nets.py:noisy")


def test_a_page_does_not_run_it_and_names_the_command(shapes, tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")
    run.create()
    config = Config.from_flat({"dataset": "shapes", "augment": f"{OWN}:noisy"})
    write_json_atomic(run.config_path, config.to_json())
    monkeypatch.setattr("labkit.experiments.replay.batch.data_set_of", lambda run: shapes)
    monkeypatch.delitem(sys.modules, "tensorflow")
    with pytest.raises(NeedsReplay, match="code of its own"):
        batch_without_tensorflow(run, 1)
