"""Parts keep images and classes; a training depends on its arguments alone; drawn images fit targets."""

import numpy as np
import pytest

import labkit
from course.lessons.transfer import features, several
from course.lessons.transfer.parts import part_of
from course.lessons.transfer.trainings import Trainer
from labkit.config import Config
from labkit.data.shards import load_split
from tests.tiny import prepare_tiny

RECIPE = {"dataset": "shapes", "num_layers": 8, "train_batch_size": 8, "learning_rate": 0.05, "num_gpus": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("transfer")


@pytest.fixture(scope="module")
def parts(folder):
    whole = prepare_tiny(folder / "data")
    known = part_of(whole, folder / "known", whole.classes[:5])
    return whole, known, part_of(whole, folder / "new", whole.classes[5:])


@pytest.fixture(scope="module")
def trainer(folder, parts):
    _, known, new = parts
    flags = {"data_dir": known.directory.parent, "job_dir": folder / "base", "train_steps": 2}
    base = labkit.train(Config.from_flat(RECIPE), **flags, evaluate_test=False)
    return Trainer(Config.from_flat({**RECIPE, "start_from": str(base.path)}), new)


def test_the_parts_are_the_whole(parts):
    whole, known, new = parts
    assert known.classes + new.classes == whole.classes
    images, labels = load_split(whole, "test")
    for part, first in ((known, 0), (new, 5)):
        mine, numbers = load_split(part, "test")
        chosen = (labels >= first) & (labels < first + 5)
        np.testing.assert_array_equal(mine, images[chosen])
        np.testing.assert_array_equal(numbers, labels[chosen] - first)


@pytest.mark.long
def test_a_training_depends_on_its_arguments_alone(trainer):
    first = trainer.train(3, seed=1, steps=2)
    trainer.train(4, seed=2, steps=3, frozen="stage1")
    again = trainer.train(3, seed=1, steps=2)
    scratch = trainer.train(3, seed=1, steps=2, transfer=False)
    name = "stage1_block1_conv1/kernel"
    np.testing.assert_array_equal(first.before[name], again.before[name])
    np.testing.assert_allclose(first.after[name], again.after[name], rtol=1e-4, atol=1e-6)
    assert abs(scratch.before[name] - first.before[name]).max() > 0.01


@pytest.mark.long
def test_a_probe_reads_what_is_there(trainer):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = rng.normal(0, 0.1, (60, 32, 32, 3)).astype(np.float32)
    for number, label in enumerate(labels):
        images[number, 10 * label : 10 * label + 8] += 3
    found = features.probe(trainer.model, (images[:30], labels[:30]), (images[30:], labels[30:]))
    assert list(found) == ["stem", "stage1", "stage2", "stage3"]
    assert found["stem"] > 0.9
    shuffled = rng.permutation(labels)
    assert (
        features.probe(trainer.model, (images[:30], shuffled[:30]), (images[30:], shuffled[30:]))["stem"]
        < 0.8
    )


def test_drawn_images_have_as_many_shapes_as_their_targets():
    images, targets = several.drawn(40, seed=3)
    assert images.shape == (40, 32, 32, 3)
    assert targets.sum(axis=1).tolist() == [0, 1, 2, 3] * 10
    again, _ = several.drawn(40, seed=3)
    np.testing.assert_array_equal(images, again)
    edges = abs(np.diff(images.astype(float), axis=1)).mean(axis=(1, 2, 3))
    assert edges[targets.sum(axis=1) == 3].mean() > edges[targets.sum(axis=1) == 0].mean() + 1
